//! The sites of a plan.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use drover_agent::sites::SiteError;
use drover_engine::{Cause, ProviderError};

use crate::errors::site_error;
use crate::setting::Setting;
use crate::there::There;

/// The sites of a plan, each of which is dialled once.
pub struct Sites {
    about: Setting,
    known: Mutex<HashMap<String, Arc<There>>>,
}

impl Sites {
    /// None of them dialled yet.
    pub fn new(about: &Setting) -> Sites {
        Sites { about: about.clone(), known: Mutex::default() }
    }

    /// The site of that name.
    pub fn there(&self, site: &str) -> Result<Arc<There>, SiteError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = known.get(site) {
            return Ok(there.clone());
        }
        let there = Arc::new(There::new(site, &self.about)?);
        known.insert(site.to_string(), there.clone());
        Ok(there)
    }

    /// The same for a provider.
    pub fn of(&self, site: &str) -> Result<Arc<There>, ProviderError> {
        self.there(site).map_err(|error| site_error(Cause::Connection, &error))
    }
}
