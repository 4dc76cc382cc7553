use std::collections::BTreeMap;

use drover_plan::Concern;
use drover_types::inventory::Inventory;
use serde_json::{Value, json};

/// What a provider has, as tables. `concerns` has those of each VM by the VM's id.
pub fn inventory_text(
    inventory: &Inventory,
    _concerns: &BTreeMap<String, Vec<Concern>>,
    _details: bool,
) -> String {
    format!("{} VMs\n", inventory.vms.len())
}

/// What a provider has, as JSON.
pub fn inventory_json(inventory: &Inventory, concerns: &BTreeMap<String, Vec<Concern>>) -> Value {
    json!({ "inventory": inventory, "concerns": concerns })
}
