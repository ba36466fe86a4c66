//! The processes in which queries run: one for each query, started before there is one.

use std::{
    env, io,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStdin, ChildStdout, Command},
    runtime::{Builder, Handle},
    sync::{Mutex, mpsc},
    task::{JoinHandle, spawn_blocking},
    time::{Instant, timeout},
};

use crate::{
    database::Fault,
    query::Answer,
    worker::{Job, Reply},
};

/// Largest part of a reply that is read, whatever a worker sends.
const MOST_REPLY: u64 = 2 << 20;

/// Workers that wait for their query, one in the channel and one that is sent, and where queries are waited for.
#[derive(Debug)]
pub(crate) struct Workers {
    ready: Mutex<mpsc::Receiver<io::Result<Worker>>>,
    runtime: Handle,
}

impl Workers {
    pub(crate) fn start(database: PathBuf) -> io::Result<Self> {
        let (sender, ready) = mpsc::channel(1);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let workers = Self { ready: Mutex::new(ready), runtime: runtime.handle().clone() };
        // A thread of its own, since the start of a process blocks.
        thread::spawn(move || {
            let _runtime = runtime.enter();
            while sender.blocking_send(Worker::start(&database)).is_ok() {}
        });
        Ok(workers)
    }

    /// Starts a task that waits for a query. It is not delayed by the requests that the lab answers. It must not
    /// block: other queries would be killed late.
    pub(crate) fn spawn<T: Send + 'static>(&self, query: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(query)
    }

    /// Runs a query until it ends, its time is over, or `stopped` gives the answer. Returns the
    /// time that it ran, too.
    pub(crate) async fn run(
        &self,
        sql: String,
        given: Duration,
        stopped: impl Future<Output = Answer>,
    ) -> (Answer, Duration) {
        let start = Instant::now();
        let mut worker = None;
        let reply = async {
            let worker = worker.insert(self.take().await?);
            let given = given.saturating_sub(start.elapsed());
            // Rounded up: a worker that ends too early has failed.
            worker.reply(Job { sql, given_ms: u64::try_from(given.as_millis() + 1).unwrap_or(u64::MAX) }).await
        };
        let mut answer = tokio::select! {
            biased;
            answer = stopped => answer,
            reply = timeout(given, reply) => match reply {
                Ok(Ok(Ok(table))) => Answer::Rows(table),
                Ok(Ok(Err(fault))) => Answer::Fault(fault),
                Ok(Err(error)) if start.elapsed() < given => Answer::Fault(Fault::Lab(error.to_string())),
                Ok(Err(_)) | Err(_) => Answer::Interrupted,
            },
        };
        let killed = worker.as_mut().map_or(Ok(()), |worker| worker.process.start_kill());
        let took = start.elapsed();
        // Its memory is free again when it is gone.
        if let Some(mut worker) = worker
            && let Err(error) = killed.and(worker.process.wait().await)
        {
            answer = Answer::Fault(Fault::Lab(error.to_string()));
        }
        (answer, took)
    }

    async fn take(&self) -> io::Result<Worker> {
        let mut ready = self.ready.lock().await;
        while let Some(worker) = ready.recv().await {
            let mut worker = worker?;
            // One that has ended meanwhile is of no use.
            if worker.process.try_wait()?.is_none() {
                return Ok(worker);
            }
        }
        Err(io::Error::other("no more processes are started"))
    }
}

/// A process of this program that runs one query. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Worker {
    process: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl Worker {
    fn start(database: &Path) -> io::Result<Self> {
        let mut process = Command::new(env::current_exe()?)
            .arg("--worker")
            .arg(database)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (input, output) = pipes.ok_or_else(|| io::Error::other("a process has no pipes"))?;
        Ok(Self { process, input, output })
    }

    async fn reply(&mut self, job: Job) -> io::Result<Reply> {
        let mut line = serde_json::to_vec(&job)?;
        line.push(b'\n');
        // A worker that could not start takes no query, and its reply says why.
        let _ = self.input.write_all(&line).await;
        let mut reply = Vec::new();
        (&mut self.output).take(MOST_REPLY).read_to_end(&mut reply).await?;
        if reply.is_empty() {
            return Err(io::Error::other("its process ended without a reply"));
        }
        Ok(spawn_blocking(move || serde_json::from_slice(&reply)).await??)
    }
}
