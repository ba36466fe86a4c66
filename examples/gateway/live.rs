//! The routes and rules in force: those of the file change together, or not at all.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use ratelimit_runtime::{Builder, Limiter, config::Rules};
use tempfile::NamedTempFile;
use tokio::time::sleep;
use toml_edit::DocumentMut;

use crate::{
    config::{Config, OWN_TABLES},
    proxy::Upstreams,
    reason,
    routes::Routes,
};

/// The time between two looks at the file. A change is applied when two have found the same.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The routes and rules in force.
pub(crate) struct Live {
    file: PathBuf,
    /// The text of the file that was last applied or refused, or why there was none.
    known: Mutex<Result<String, String>>,
    rules: Rules,
    limiter: Limiter,
    upstreams: Upstreams,
    routes: ArcSwap<Routes>,
    saving: tokio::sync::Mutex<()>,
}

impl Live {
    /// Fails if the file has a mistake.
    pub(crate) async fn start(file: &Path, limiter: Builder, upstreams: Upstreams) -> Result<Arc<Self>, String> {
        let text = read(file)?;
        let config = Config::parse(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        let rules = Rules::parse_beside(&text, OWN_TABLES).map_err(|error| error.to_string())?;
        let limiter = limiter.rules(rules.clone()).build().await;
        let limiter = limiter.map_err(|error| format!("cannot use the store: {error}"))?;
        let routes = ArcSwap::from_pointee(Routes::new(config, &limiter, &upstreams));
        let live = Arc::new(Self {
            file: file.to_owned(),
            known: Mutex::new(Ok(text)),
            rules,
            limiter,
            upstreams,
            routes,
            saving: tokio::sync::Mutex::default(),
        });
        tokio::spawn(Arc::clone(&live).watch());
        Ok(live)
    }

    /// Gives back to the store what this process has taken and not used.
    pub(crate) async fn close(&self) {
        self.limiter.close().await;
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    pub(crate) fn routes(&self) -> Arc<Routes> {
        self.routes.load_full()
    }

    /// Changes the file. Fails, and changes nothing, if it would have a mistake then.
    pub(crate) async fn save(&self, change: impl FnOnce(&mut DocumentMut) -> Result<(), String>) -> Result<(), String> {
        let _alone = self.saving.lock().await;
        let mut file: DocumentMut =
            read(&self.file)?.parse().map_err(|error| format!("the file has a mistake: {error}"))?;
        change(&mut file)?;
        let text = file.to_string();
        Config::parse(&text)?;
        replace(&self.file, &text)
            .map_err(|error| format!("cannot write {}: {}", self.file.display(), reason(&error)))?;
        self.apply(&text)?;
        self.set_known(Ok(text));
        Ok(())
    }

    /// Follows changes of the file.
    async fn watch(self: Arc<Self>) {
        let mut last = self.known();
        loop {
            sleep(POLL_INTERVAL).await;
            let now = read(&self.file);
            if now == last && now != self.known() {
                match now.clone().and_then(|text| self.apply(&text)) {
                    Ok(()) => tracing::info!(file = %self.file.display(), "the routes and rules have changed"),
                    Err(reason) => {
                        let file = self.file.display();
                        tracing::error!(%file, reason, "the file has a mistake; the routes and rules stay as they were");
                    }
                }
                self.set_known(now.clone());
            }
            last = now;
        }
    }

    fn apply(&self, text: &str) -> Result<(), String> {
        let config = Config::parse(text)?;
        self.rules.replace(text).map_err(|error| error.to_string())?;
        self.routes.store(Arc::new(Routes::new(config, &self.limiter, &self.upstreams)));
        Ok(())
    }

    fn known(&self) -> Result<String, String> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_known(&self, known: Result<String, String>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("cannot read {}: {}", file.display(), reason(&error)))
}

/// Writes a file in one step, so that no reader sees half of it. A link stays one.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let file = fs::canonicalize(file)?;
    let new = NamedTempFile::new_in(file.parent().unwrap_or(Path::new(".")))?;
    fs::write(&new, text)?;
    fs::set_permissions(&new, fs::metadata(&file)?.permissions())?;
    new.persist(&file)?;
    Ok(())
}
