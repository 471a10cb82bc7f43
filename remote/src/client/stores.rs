//! The object store at an address, with the options of the environment.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::memory::InMemory;
use object_store::{ClientConfigKey, ObjectStore, Result, RetryConfig};

use super::address::Place;
use super::file_store::FileStore;

pub(super) struct Opened {
    pub(super) store: Arc<dyn ObjectStore>,
    /// Before the names of all objects.
    pub(super) prefix: String,
    /// Servers of files take no puts.
    pub(super) is_read_only: bool,
    pub(super) is_directory: bool,
}

impl Opened {
    /// A store that can be written, with names as they are.
    pub(super) fn of(store: impl ObjectStore) -> Self {
        Opened { store: Arc::new(store), prefix: String::new(), is_read_only: false, is_directory: false }
    }
}

/// The stores in the memory of this process, by name.
static IN_MEMORY: Mutex<BTreeMap<String, Arc<InMemory>>> = Mutex::new(BTreeMap::new());

/// A client limits the time of each request itself, by its size.
const NO_TIMEOUT: &str = "1 day";

/// Opens it without any request. `variables` are those of the environment.
pub(super) fn open(place: Place, variables: &[(String, String)]) -> Result<Opened> {
    // A client makes the attempts itself: it limits each one, and counts them.
    let retries = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let (store, prefix): (Arc<dyn ObjectStore>, String) = match place {
        Place::S3 { bucket, path } => {
            let mut builder = AmazonS3Builder::new();
            for (key, value) in options::<AmazonS3ConfigKey>(variables, "AWS_") {
                builder = builder.with_config(key, value);
            }
            let store = builder
                .with_bucket_name(bucket)
                .with_conditional_put(S3ConditionalPut::ETagMatch)
                .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), NO_TIMEOUT)
                .with_retry(retries)
                .build()?;
            (Arc::new(store), path)
        }
        Place::Google { bucket, path } => {
            let mut builder = GoogleCloudStorageBuilder::new();
            if let Some((_, value)) = variables.iter().find(|(name, _)| name == "SERVICE_ACCOUNT") {
                builder = builder.with_service_account_path(value);
            }
            for (key, value) in options::<GoogleConfigKey>(variables, "GOOGLE_") {
                builder = builder.with_config(key, value);
            }
            let store = builder
                .with_bucket_name(bucket)
                .with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), NO_TIMEOUT)
                .with_retry(retries)
                .build()?;
            (Arc::new(store), path)
        }
        Place::Azure { container, path } => {
            let mut builder = MicrosoftAzureBuilder::new();
            for (key, value) in options::<AzureConfigKey>(variables, "AZURE_") {
                builder = builder.with_config(key, value);
            }
            if let Some((_, value)) = variables.iter().find(|(name, _)| name == "IDENTITY_ENDPOINT") {
                builder = builder.with_msi_endpoint(value);
            }
            let store = builder
                .with_container_name(container)
                .with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), NO_TIMEOUT)
                .with_retry(retries)
                .build()?;
            (Arc::new(store), path)
        }
        Place::Http { base } => {
            let store = HttpBuilder::new()
                .with_url(base)
                // Written in the URL, so it is meant.
                .with_config(ClientConfigKey::AllowHttp, "true")
                .with_config(ClientConfigKey::Timeout, NO_TIMEOUT)
                .with_retry(retries)
                .build()?;
            return Ok(Opened { is_read_only: true, ..Opened::of(store) });
        }
        Place::File { root } => {
            return Ok(Opened { is_directory: true, ..Opened::of(FileStore::new(root)) });
        }
        Place::Memory { name, path } => {
            let mut stores = IN_MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
            let store: Arc<InMemory> = Arc::clone(stores.entry(name).or_default());
            (store, path)
        }
    };
    Ok(Opened { store, prefix, is_read_only: false, is_directory: false })
}

/// Parses variables as `from_env` of object_store does. An empty one counts as not set.
fn options<K: FromStr>(variables: &[(String, String)], prefix: &str) -> Vec<(K, String)> {
    let parse = |(name, value): &(String, String)| {
        let key = (name.starts_with(prefix) && !value.is_empty())
            .then(|| name.to_ascii_lowercase().parse().ok())??;
        Some((key, value.clone()))
    };
    variables.iter().filter_map(parse).collect()
}
