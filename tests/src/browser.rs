//! A real browser without a window, for tests of a page: Chromium, over its `DevTools` protocol.

use std::{env, fs, net::TcpStream, path::Path, process::Command, process::Stdio};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket, stream::MaybeTlsStream};

use crate::patience::wait_until;
use crate::process::Process;

/// A browser with one page in it.
///
/// `CHROMIUM` in the environment names another program than `chromium`.
#[derive(Debug)]
pub struct Browser {
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    session: Option<String>,
    calls: u64,
    _process: Process,
    _profile: TempDir,
}

impl Browser {
    /// Opens a page.
    pub fn open(url: &str) -> Self {
        let profile = tempfile::tempdir().expect("a folder");
        let program = env::var("CHROMIUM").unwrap_or_else(|_| "chromium".into());
        let mut command = Command::new(&program);
        command
            .args([
                "--headless",
                "--disable-gpu",
                "--no-first-run",
                "--remote-debugging-port=0",
                "--window-size=1280,1000",
            ])
            .arg("--no-sandbox") // tests run as root in containers, where its sandbox can't be set up
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut process = Process::spawn(&mut command, profile.path()).unwrap_or_else(|error| {
            panic!(
                "{program} does not start: {error}; install chromium (tests/run does), or name another one in CHROMIUM"
            )
        });
        let socket = wait_until("the browser listens", || {
            if let Some(status) = process.status() {
                panic!("{program} ended: {status}");
            }
            connect(profile.path())
        });
        let mut browser = Self { socket, session: None, calls: 0, _process: process, _profile: profile };
        let page = browser.call("Target.createTarget", &json!({ "url": url }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", &attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        browser
    }

    /// The value of an expression in the page.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let result = self.call("Runtime.evaluate", &json!({ "expression": expression, "returnByValue": true }));
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true in the page.
    pub fn wait_for(&mut self, expression: &str) {
        wait_until(expression, || match self.evaluate(&format!("Boolean({expression})")) {
            Value::Bool(true) => Ok(()),
            _ => Err(self.evaluate("document.body?.innerText").to_string()),
        });
    }

    /// Presses the mouse on an element.
    pub fn click(&mut self, selector: &str) {
        let at = self.evaluate(&format!(
            "(() => {{ const element = document.querySelector({selector:?}); element.scrollIntoView({{ block: 'center' }});
            const {{ x, y, width, height }} = element.getBoundingClientRect(); return [x + width / 2, y + height / 2]; }})()"
        ));
        for event in ["mousePressed", "mouseReleased"] {
            let press = json!({ "type": event, "x": at[0], "y": at[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &press);
        }
    }

    /// Writes a text into a field, in place of what is there.
    pub fn write(&mut self, selector: &str, text: &str) {
        self.click(selector);
        self.evaluate(&format!("document.querySelector({selector:?}).select()"));
        self.call("Input.insertText", &json!({ "text": text }));
    }

    /// Moves the focus to the next field or button, as the key does.
    pub fn press_tab(&mut self) {
        for event in ["rawKeyDown", "keyUp"] {
            let press = json!({ "type": event, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9 });
            self.call("Input.dispatchKeyEvent", &press);
        }
    }

    /// Makes its screen this wide, in pixels, with the colors of the system light or dark.
    pub fn set_screen(&mut self, width: u32, is_dark: bool) {
        let screen = json!({ "width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &screen);
        self.call("Emulation.setScrollbarsHidden", &json!({ "hidden": true }));
        let scheme = if is_dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", &media);
    }

    /// Writes a picture of the whole page (PNG).
    pub fn screenshot(&mut self, file: &Path) {
        let size = self.evaluate(
            "(({ scrollWidth: width, scrollHeight: height }) => ({ x: 0, y: 0, scale: 1, width, height }))(document.documentElement)",
        );
        let picture = self.call("Page.captureScreenshot", &json!({ "captureBeyondViewport": true, "clip": size }));
        let picture = STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("base64");
        fs::write(file, picture).expect("a file");
    }

    /// Writes pictures of the page on a narrow and on a wide screen, light and dark, as
    /// `target/screenshots/NAME-400-dark.png` for example.
    pub fn screenshots(&mut self, name: &str) {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/screenshots"));
        fs::create_dir_all(folder).expect("a folder");
        for width in [400, 1400] {
            for (scheme, is_dark) in [("light", false), ("dark", true)] {
                self.set_screen(width, is_dark);
                // A page that draws at each frame has drawn.
                self.evaluate("requestAnimationFrame(() => requestAnimationFrame(() => window.drawn = true))");
                self.wait_for(&format!("window.drawn && document.documentElement.clientWidth === {width}"));
                self.evaluate("window.drawn = false");
                self.screenshot(&folder.join(format!("{name}-{width}-{scheme}.png")));
            }
        }
        println!("the pictures are in {}", folder.canonicalize().expect("the folder").display());
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.calls += 1;
        let mut call = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            call["sessionId"] = json!(session);
        }
        self.socket.send(Message::text(call.to_string())).expect("the browser listens");
        loop {
            let Message::Text(text) = self.socket.read().expect("the browser answers") else { continue };
            let mut answer: Value = serde_json::from_str(&text).expect("an answer is JSON");
            if answer["id"] == self.calls {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }
}

/// To where the browser says that it listens.
fn connect(profile: &Path) -> Result<WebSocket<MaybeTlsStream<TcpStream>>, String> {
    let told = fs::read_to_string(profile.join("DevToolsActivePort")).map_err(|error| error.to_string())?;
    let (port, path) = told.split_once('\n').ok_or("half of a file")?;
    let (socket, _) =
        tungstenite::connect(format!("ws://127.0.0.1:{port}{path}")).map_err(|error| error.to_string())?;
    Ok(socket)
}
