use std::collections::{BTreeMap, BTreeSet, HashMap};

use drover_http::{HttpError, Request};
use drover_types::inventory::Vm;
use serde_json::{Value, json};

use crate::session::Inner;

/// VMs asked about in one request.
const OBJECTS_MAX: usize = 1000;
/// Different tags that are looked up; each costs a request.
const TAGS_MAX: usize = 5000;

const SESSION: &str = "/rest/com/vmware/cis/session";
const TAGGING: &str = "/rest/com/vmware/cis/tagging";

impl Inner {
    /// Fills in the tags of `vms` through the REST API, which only a vCenter has: one request for each thousand VMs,
    /// each tag and each category. Why they are not all known becomes a warning, and is given back.
    pub fn add_tags(&self, vms: &mut [Vm]) -> Option<String> {
        if !self.content.about.is_vcenter {
            return Some("a host without a vCenter has none".to_string());
        }
        if vms.is_empty() {
            return None;
        }
        let why = match self.try_add_tags(vms) {
            Ok(why) => why,
            Err(why) => Some(format!("tags could not be read: {why}")),
        };
        why.inspect(|why| self.warn(why.clone()))
    }

    /// Gives why some are not known.
    fn try_add_tags(&self, vms: &mut [Vm]) -> Result<Option<String>, String> {
        let user = &self.options.user;
        let login = base64(format!("{user}:{}", self.options.password.reveal()).as_bytes());
        let request = Request::post(SESSION, "").with_header("Authorization", format!("Basic {login}"));
        let token = self.rest(request)?.as_str().ok_or("no session id in the answer")?.to_string();
        let done = self.tags_under(&token, vms);
        // The session ends by itself if this fails.
        let _ = self.rest(Request { method: "DELETE", ..with_token(Request::get(SESSION), &token) });
        done
    }

    fn tags_under(&self, token: &str, vms: &mut [Vm]) -> Result<Option<String>, String> {
        let mut attached: HashMap<String, Vec<String>> = HashMap::new();
        for some in vms.chunks(OBJECTS_MAX) {
            attached.extend(self.attached(token, some)?);
        }
        let ids: BTreeSet<String> = attached.values().flatten().cloned().collect();
        let too_many = (ids.len() > TAGS_MAX)
            .then(|| format!("{} different tags are in use; only {TAGS_MAX} were read", ids.len()));
        let names = self.tag_names(token, ids.iter().take(TAGS_MAX))?;
        for vm in vms {
            let of_vm = attached.remove(&vm.id).unwrap_or_default();
            vm.tags = of_vm.iter().filter_map(|id| names.get(id).cloned()).collect();
            vm.tags.sort();
        }
        Ok(too_many)
    }

    /// Ids of tags by id of VM.
    fn attached(&self, token: &str, vms: &[Vm]) -> Result<HashMap<String, Vec<String>>, String> {
        let objects: Vec<Value> =
            vms.iter().map(|vm| json!({"id": vm.id, "type": "VirtualMachine"})).collect();
        let path = format!("{TAGGING}/tag-association?~action=list-attached-tags-on-objects");
        let body = json!({ "object_ids": objects }).to_string();
        let request = Request { idempotent: true, ..Request::post(path, body) }
            .with_header("Content-Type", "application/json");
        let answer = self.rest(with_token(request, token))?;
        let one = |entry: &Value| {
            let ids = entry["tag_ids"]
                .as_array()?
                .iter()
                .filter_map(|id| id.as_str().map(str::to_string))
                .collect();
            Some((entry["object_id"]["id"].as_str()?.to_string(), ids))
        };
        Ok(answer.as_array().ok_or("no list of attached tags")?.iter().filter_map(one).collect())
    }

    /// `category:name` by id of tag.
    fn tag_names<'a>(
        &self,
        token: &str,
        ids: impl Iterator<Item = &'a String>,
    ) -> Result<BTreeMap<String, String>, String> {
        let mut categories: BTreeMap<String, String> = BTreeMap::new();
        let mut names = BTreeMap::new();
        for id in ids {
            let path = format!("{TAGGING}/tag/id:{}", encode(id));
            // One that was removed meanwhile is no VM's any more.
            let Some(tag) = self.rest_if_there(with_token(Request::get(path), token))? else { continue };
            let category_id = tag["category_id"].as_str().unwrap_or_default().to_string();
            if !categories.contains_key(&category_id) {
                let path = format!("{TAGGING}/category/id:{}", encode(&category_id));
                let category = self.rest(with_token(Request::get(path), token))?;
                categories
                    .insert(category_id.clone(), category["name"].as_str().unwrap_or_default().to_string());
            }
            let name = tag["name"].as_str().unwrap_or_default();
            names.insert(id.clone(), format!("{}:{name}", categories[&category_id]));
        }
        Ok(names)
    }

    /// The `value` of an answer.
    fn rest(&self, request: Request) -> Result<Value, String> {
        let path = request.path.clone();
        self.rest_if_there(request)?.ok_or_else(|| format!("{path} is not there"))
    }

    /// The same; nothing if what is asked for is not there.
    fn rest_if_there(&self, request: Request) -> Result<Option<Value>, String> {
        let response = self.client.send(&request).map_err(|error: HttpError| error.to_string())?;
        if response.head.status == 404 {
            return Ok(None);
        }
        if !(200..300).contains(&response.head.status) {
            let path = request.path.split('?').next().unwrap_or_default();
            return Err(format!("{path} answered {}", response.head.status_line()));
        }
        if response.body.is_empty() {
            return Ok(Some(Value::Null));
        }
        let mut answer: Value = serde_json::from_slice(&response.body).map_err(|error| error.to_string())?;
        Ok(Some(answer.get_mut("value").map(Value::take).unwrap_or(answer)))
    }
}

fn with_token(request: Request, token: &str) -> Request {
    request.with_header("vmware-api-session-id", token)
}

/// Percent-encodes all but unreserved characters, for a part of a path or a value of a query.
pub(crate) fn encode(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => (byte as char).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// RFC 4648 base64 with padding, for basic authentication.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63] as char;
            out.push(if place <= three.len() { digit } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_as_the_rfc_says() {
        for (text, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(text.as_bytes()), coded);
        }
    }

    #[test]
    fn encodes_spaces_umlauts_and_signs() {
        assert_eq!(encode("a b#%ü/."), "a%20b%23%25%C3%BC%2F.");
    }
}
