//! Checks of the variables of the environment. object_store takes what it gets, and panics later.

use url::Url;

use super::address::Place;

/// Returns what is wrong with the variables that a place uses: the name of one, and what it must be. Its value may be secret.
pub(super) fn check(place: &Place, variables: &[(String, String)]) -> Result<(), String> {
    let prefix = match place {
        Place::S3 { .. } => "AWS_",
        Place::Google { .. } => "GOOGLE_",
        Place::Azure { .. } => "AZURE_",
        Place::Http { .. } | Place::File { .. } | Place::Memory { .. } => return Ok(()),
    };
    for (name, value) in variables {
        let is_used =
            name.starts_with(prefix) || matches!(name.as_str(), "SERVICE_ACCOUNT" | "IDENTITY_ENDPOINT");
        if is_used && !value.is_empty() {
            check_value(name, value).map_err(|wrong| format!("the environment variable {name} {wrong}"))?;
        }
    }
    let value = |name: &str| {
        let found = variables.iter().find(|(key, value)| key == name && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    };
    let is_plain = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
        .iter()
        .find_map(|name| value(name))
        .is_some_and(|endpoint| endpoint.to_ascii_lowercase().starts_with("http://"));
    let is_allowed = value("AWS_ALLOW_HTTP").is_some_and(|allowed| !matches!(allowed, "0" | "false"));
    match matches!(place, Place::S3 { .. }) && is_plain && !is_allowed {
        true => Err("the endpoint in the environment is http:// without TLS; set AWS_ALLOW_HTTP=true if that is meant"
            .to_owned()),
        false => Ok(()),
    }
}

fn check_value(name: &str, value: &str) -> Result<(), &'static str> {
    let ends_with = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    // A document of several lines.
    if ends_with(&["SERVICE_ACCOUNT_KEY"]) {
        return Ok(());
    }
    if value.chars().any(char::is_control) {
        return Err("has a line break or another control character; set it without");
    }
    let is_path = ends_with(&["_FILE", "SERVICE_ACCOUNT", "SERVICE_ACCOUNT_PATH", "CREDENTIALS", "PROFILE"]);
    if !is_path && !value.is_ascii() {
        return Err("has a character that is not ASCII; correct it");
    }
    let is_region =
        |value: &str| value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if ends_with(&["_REGION"]) && !is_region(value) {
        return Err("must be the name of a region, such as us-east-1");
    }
    let is_url = name.contains("_ENDPOINT_URL")
        || ends_with(&["ENDPOINT", "BASE_URL", "SERVICE_URL", "FULL_URI", "_HOST"]);
    if is_url && !ends_with(&["USE_FABRIC_ENDPOINT"]) && !is_server(value) {
        return Err("must be the URL of a server, such as https://host or https://host:port");
    }
    Ok(())
}

fn is_server(value: &str) -> bool {
    let has_scheme = ["http://", "https://"]
        .iter()
        .any(|scheme| value.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    let is_plain = value.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#@\\".contains(&byte));
    has_scheme && is_plain && Url::parse(value).is_ok_and(|url| url.has_host())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_are_meant_are_taken() {
        let s3 = Place::S3 { bucket: "b".into(), path: String::new() };
        let azure = Place::Azure { container: "c".into(), path: String::new() };
        let google = Place::Google { bucket: "b".into(), path: String::new() };
        for (place, name, value) in [
            (&s3, "AWS_ENDPOINT_URL", "https://minio.example:9000/prefix/"),
            (&s3, "AWS_ENDPOINT_URL", "https://[::1]:9000"),
            (&s3, "AWS_ENDPOINT_URL", ""),
            (&s3, "AWS_REGION", "auto"),
            (&s3, "AWS_SECRET_ACCESS_KEY", "a+b/c=d e"),
            (&s3, "AWS_WEB_IDENTITY_TOKEN_FILE", "/home/jörg/token"),
            (&s3, "AZURE_ENDPOINT", "of another service"),
            (&azure, "AZURE_USE_FABRIC_ENDPOINT", "true"),
            (&azure, "AZURE_AUTHORITY_HOST", "https://login.microsoftonline.com"),
            (&google, "GOOGLE_SERVICE_ACCOUNT_KEY", "{\n}\n"),
            (&google, "GOOGLE_SERVICE_ACCOUNT", "/home/jörg/key.json"),
        ] {
            let variables = [(name.to_owned(), value.to_owned())];
            assert_eq!(check(place, &variables), Ok(()), "{name}={value}");
        }
    }
}
