//! The page in a real browser, with real clicks.

use std::{fs, time::Duration};

use ratelimit_harness::Browser;

use super::support::Gateway;

/// With real clicks: a burst is fired, what came of it is counted and drawn, and a rule that is changed there holds.
#[test]
fn the_page() {
    let routes =
        [("/api", "limits = [{ rule = \"api\" }]"), ("/other", "limits = [{ rule = \"all\" }, { rule = \"api\" }]")];
    let rules = [("api", "count = 30\nunit = \"Days\" # of the sun"), ("all", "count = 5000\nunit = \"Days\"")];
    let gateway = Gateway::with("memory://", &routes, &rules);
    let mut page = Browser::open(&format!("{}/limits", gateway.url));
    page.wait_for("document.querySelectorAll('article').length === 2");
    assert_eq!(page.evaluate("document.querySelector('#rule-all .path').value"), "/other");
    let drawn = |color: &str| {
        format!(
            "(() => {{ const canvas = document.querySelector('#rule-api canvas');
            const {{ data }} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height - 6);
            const probe = document.createElement('canvas').getContext('2d');
            probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--{color}'); probe.fillRect(0, 0, 1, 1);
            const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
            let count = 0;
            for (let at = 0; at < data.length; at += 4)
                if (data[at + 3] === 255 && data[at] === red && data[at + 1] === green && data[at + 2] === blue) count++;
            return count; }})()"
        )
    };
    assert_eq!(page.evaluate(&format!("{} + {}", drawn("admitted"), drawn("refused"))), 0);
    page.click("#rule-api [data-burst='100']");
    page.wait_for("document.querySelector('#rule-api .said').textContent === '30 × 200, 70 × 429'");
    page.wait_for("document.querySelector('#rule-api .admitted b').textContent === '30'");
    page.wait_for("document.querySelector('#rule-api .refused b').textContent === '70'");
    // A page that is opened later shows what was before.
    page.evaluate("document.querySelector('main').remove(); location.reload()");
    page.wait_for("document.querySelectorAll('article').length === 2");
    page.wait_for(&format!("{} > 5 && {} > 5", drawn("admitted"), drawn("refused")));

    // What is there in the file stays, and what is changed holds without anything started anew.
    page.write("#rule-api [name=count]", "35");
    page.click("#rule-api .save");
    page.wait_for("document.querySelector('#rule-api .said').textContent === 'saved'");
    let text = fs::read_to_string(&gateway.config).unwrap();
    assert!(text.contains("count = 35\n") && text.contains("# of the sun"), "{text}");
    page.click("#rule-api [data-burst='10']");
    page.wait_for("document.querySelector('#rule-api .said').textContent === '5 × 200, 5 × 429'");

    // An impossible rule is an error and is not written.
    page.write("#rule-api [name=count]", "99999999999");
    page.click("#rule-api .save");
    page.wait_for("document.querySelector('#rule-api .said.wrong')?.textContent.includes('its count is 99999999999')");
    assert_eq!(fs::read_to_string(&gateway.config).unwrap(), text);
}

/// On a narrow screen as on a wide one, nothing is cut off.
#[test]
fn the_page_fits_narrow_and_wide_screens() {
    let routes = [
        ("/api", "limits = [{ rule = \"api\" }]"),
        ("/long", "limits = [{ rule = \"a-rule-with-a-long-name\", key = \"header:x-user\" }]"),
    ];
    let rules = [
        ("api", "count = 30\nunit = \"Milliseconds\"\nshadow = true"),
        ("a-rule-with-a-long-name", "count = 1\nunit = \"Days\"\nalgorithm = \"TokenBucket\"\nburst = 1"),
    ];
    let gateway = Gateway::with("memory://", &routes, &rules);
    for _ in 0..3 {
        let user = "someone-with-a-name-that-is-longer-than-a-narrow-screen-is-wide-and-without-a-gap";
        gateway.raw(format!("GET /long HTTP/1.1\r\nHost: x\r\nX-User: {user}\r\nConnection: close\r\n\r\n").as_bytes());
    }
    let mut page = Browser::open(&format!("{}/elsewhere", gateway.url));
    page.wait_for("document.body?.innerText.includes('no route')");
    for width in [400, 1400] {
        page.evaluate(&format!(
            "{{ document.body.replaceChildren(); window.shown = document.createElement('iframe');
             shown.style = 'border: 0; width: {width}px; height: 2000px'; shown.src = '/limits';
             document.body.append(shown); }}"
        ));
        page.wait_for("window.shown?.contentDocument?.querySelectorAll('.most li').length === 1");
        let cut = page.evaluate(
            "(() => { const { document } = shown.contentWindow, root = document.documentElement, cut = [];
             if (root.scrollWidth > root.clientWidth) cut.push('page');
             for (const element of document.querySelectorAll('article, article *')) {
                 const { right, width } = element.getBoundingClientRect();
                 if (width && right > root.clientWidth + 1) cut.push(element.outerHTML.slice(0, 80));
             }
             for (const select of document.querySelectorAll('select')) {
                 const longest = select.cloneNode(true);
                 longest.style.width = 'auto'; select.parentNode.append(longest);
                 if (longest.offsetWidth > select.offsetWidth) cut.push(select.name);
                 longest.remove();
             }
             return cut; })()",
        );
        assert_eq!(cut, serde_json::json!([]), "at {width} pixels");
        let lines = page.evaluate(
            "[...shown.contentDocument.querySelectorAll('form')].map(form => [...form.querySelectorAll('label')]
             .filter(label => label.innerText.trim()).map(label => Math.round(10 * (label.getBoundingClientRect().top - form.getBoundingClientRect().top))))
             .map(tops => new Set(tops).size)",
        );
        assert_eq!(lines, serde_json::json!([3, 3]), "labels in a row are level, at {width} pixels");
    }
}

/// Pictures of the page under a load, for people to look at.
#[test]
#[ignore = "makes pictures, and checks nothing"]
fn screenshots() {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gateway/gateway.toml");
    let gateway = Gateway::start(&fs::read_to_string(sample).unwrap(), &[]);
    let mut page = Browser::open(&format!("{}/limits", gateway.url));
    page.wait_for("document.querySelectorAll('article').length === 3");
    for second in 0..25 {
        let burst = if second % 8 == 0 { 500 } else { 100 };
        page.click(&format!("#rule-api [data-burst='{burst}']"));
        page.click("#rule-search [data-burst='10']");
        let user = ["key-of-alice", "key-of-bob"][second % 2];
        page.evaluate(&format!(
            "for (let i = 0; i < 80; i++) fetch('/api/items', {{ headers: {{ 'x-api-key': '{user}' }} }})"
        ));
        std::thread::sleep(Duration::from_secs(1));
    }
    page.write("#rule-search [name=count]", "99999999999");
    page.click("#rule-search .save");
    page.wait_for("document.querySelector('#rule-search .said.wrong')");
    page.press_tab();
    page.screenshots("gateway");
}
