//! The page, in a real browser.

use std::{
    thread,
    time::{Duration, Instant},
};

use ratelimit_harness::Browser;

use crate::{
    FOR_EVER,
    lab::{Lab, alone},
};

/// With real clicks: rows are shown, a query is interrupted and one is stopped, and the plot shows what was used.
#[tokio::test]
async fn the_page() {
    let (_alone, folder) = (alone().await, tempfile::tempdir().unwrap());
    let lab = Lab::start("memory://", "3s", "60s", &folder.path().join("log.jsonl"));
    let mut page = Browser::open(&lab.url);
    let said = |words: &str| format!("document.querySelector('.said').textContent.includes({words:?})");
    page.wait_for("document.querySelectorAll('article').length === 3");
    page.click(".run");
    page.wait_for(&said("alice: 5 rows after"));
    assert_eq!(page.evaluate("document.querySelector('td').textContent"), "Cork");
    page.wait_for("document.querySelector('[data-user=alice] .used b').textContent !== '0 ms'");

    page.evaluate(
        "fetch(document.querySelector('.csv').href).then(csv => csv.text()).then(text => window.file = text)",
    );
    page.wait_for("window.file?.startsWith('city,euros\\r\\nCork,')");
    page.write("textarea", "SELECT 'a,\"b' AS x, NULL AS y, '' AS z, 1 AS n");
    page.click(".run");
    page.wait_for(&said("alice: 1 rows after"));
    page.evaluate(
        "fetch(document.querySelector('.csv').href).then(csv => csv.text()).then(text => window.file = text)",
    );
    page.wait_for(r#"window.file === 'x,y,z,n\r\n"a,""b",,"",1\r\n'"#);

    page.write("textarea", "SELECT sleep(60000)");
    page.write("[name=user]", "bob");
    page.click(".run");
    page.wait_for("!document.querySelector('[data-user=bob] .badge').hidden");
    page.wait_for("!document.querySelector('[data-user=bob] .progress').hidden");
    page.wait_for("document.querySelector('[data-user=bob] progress').value > 0");
    page.wait_for(
        r"/ of (3,000|2,99\d) ms$/.test(document.querySelector('[data-user=bob] .progress span').textContent)",
    );
    page.click(".stop");
    page.wait_for(&said("bob: stopped"));
    page.wait_for("document.querySelector('[data-user=bob] .badge').hidden");
    page.wait_for("document.querySelector('[data-user=bob] .progress').hidden");

    page.write("textarea", FOR_EVER);
    page.write("[name=user]", "dave");
    page.click(".run");
    page.wait_for(&said("dave: interrupted after"));
    page.wait_for("document.querySelector('[data-user=dave] .left b').textContent === '0 ms'");
    page.click(".run");
    page.wait_for(&said("dave: `query-time` is limited to"));
    // Its time axis says where now is.
    page.evaluate(
        "{ const pen = CanvasRenderingContext2D.prototype, fill = pen.fillText; window.words = new Set();
         pen.fillText = function (text, ...at) { words.add(text); fill.call(this, text, ...at); } }",
    );
    page.wait_for("['120 s ago', '60 s ago', 'now', 'budget 3,000 ms'].every(text => words.has(text))");
    // Above what bob has used it is empty, and below the budget of dave it is not.
    let mut drawn = |user: &str| {
        let pixel = format!(
            "(() => {{ const canvas = document.querySelector('[data-user={user}] canvas'), at = canvas.height / 3;
            return canvas.getContext('2d').getImageData(canvas.width - 2, at, 1, 1).data[3]; }})()"
        );
        page.evaluate(&pixel).as_u64().unwrap() > 0
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !drawn("dave") {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(50));
    }
    assert!(!drawn("carol"));
}

/// Pictures of the page while a query runs, for people to look at.
#[test]
#[ignore = "makes pictures, and checks nothing"]
fn screenshots() {
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::start("memory://", "20s", "60s", &folder.path().join("log.jsonl"));
    let mut page = Browser::open(&lab.url);
    page.wait_for("document.querySelectorAll('article').length === 3");
    for ms in [2_000, 1_000, 4_000] {
        page.write("textarea", &format!("SELECT sleep({ms})"));
        page.click(".run");
        page.wait_for("document.querySelector('.said').textContent.includes('alice: 1 rows')");
        page.evaluate("document.querySelector('.said').textContent = ''");
        thread::sleep(Duration::from_secs(2));
    }
    page.write("[name=user]", "bob");
    page.write("textarea", "SELECT sleep(600000)");
    page.click(".run");
    page.wait_for("!document.querySelector('[data-user=bob] .progress').hidden");
    page.write("[name=user]", "alice");
    page.write("textarea", "SELECT city, items.*, sellers.* FROM items JOIN sellers ON seller = sellers.id LIMIT 12");
    page.click(".run");
    page.wait_for("document.querySelector('.said').textContent.includes('alice: 12 rows')");
    thread::sleep(Duration::from_secs(4));
    page.press_tab();
    page.screenshots("query_lab");
}
