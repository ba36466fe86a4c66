//! A server process that does not outlive its owner, however the owner ends.

use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Its standard input is a pipe the owning process holds. When that process ends without a word, `kill -9` included,
/// the pipe closes; then the server ends too, and its folder goes.
const WATCHDOG: &str = r#"trap "" HUP INT TERM; read -r _; kill -9 "$1"; rm -rf -- "$2""#;

/// Drop: killed and waited for.
#[derive(Debug)]
pub(crate) struct Process {
    server: Child,
    watchdog: Option<Child>,
    stopped: AtomicBool,
}

impl Process {
    pub(crate) fn spawn(server: &mut Command, folder: &Path) -> io::Result<Self> {
        let mut process = Process { server: server.spawn()?, watchdog: None, stopped: AtomicBool::new(false) };
        process.watchdog = Some(
            Command::new("sh")
                .args(["-c", WATCHDOG, "watchdog"])
                .arg(process.id().to_string())
                .arg(folder)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("sh runs"),
        );
        Ok(process)
    }

    pub(crate) fn id(&self) -> u32 {
        self.server.id()
    }

    /// `Some` once it has ended by itself.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        self.server.try_wait().expect("the server is our child")
    }

    /// Returns once it has stopped: a signal alone leaves it a moment to answer in.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let states = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()), states).expect("the server is our child");
        self.stopped.store(true, Ordering::SeqCst);
    }

    pub(crate) fn cont(&self) {
        self.signal(Signal::CONT);
        self.stopped.store(false, Ordering::SeqCst);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal)
            .unwrap_or_else(|error| panic!("cannot signal the server {}: {error}", self.id()));
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.server)
    }
}

impl Drop for Process {
    /// The watchdog ends first: until the server is waited for, no other process can have its id.
    fn drop(&mut self) {
        let _ = self.server.kill();
        if let Some(watchdog) = &mut self.watchdog {
            let _ = watchdog.kill();
            let _ = watchdog.wait();
        }
        let _ = self.server.wait();
    }
}
