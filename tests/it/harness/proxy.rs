use super::*;
use ratelimit_harness::{Mode, Proxy};

/// A server, and a proxy in front of it.
fn start() -> (RedisServer, Proxy) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    (server, proxy)
}

/// A connection that waits for an answer, but not for ever.
fn open(proxy: &Proxy) -> TcpStream {
    let connection = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    connection
}

fn send(connection: &mut TcpStream, command: &str) {
    connection.write_all(format!("{command}\r\n").as_bytes()).unwrap();
}

fn receive(connection: &mut TcpStream) -> String {
    let mut reply = String::new();
    BufReader::new(connection).read_line(&mut reply).unwrap();
    reply.trim_end().to_owned()
}

fn asked(connection: &mut TcpStream, command: &str) -> String {
    send(connection, command);
    receive(connection)
}

/// Nothing comes, for as long as a test can afford to see that.
fn is_silent(connection: &mut TcpStream) -> bool {
    connection.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let silent = connection.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    silent
}

/// Closed without a word.
fn is_closed(connection: &mut TcpStream) -> bool {
    connection.read(&mut [0]).is_ok_and(|length| length == 0)
}

fn fruit(server: &RedisServer) -> Option<i64> {
    ask(server, "GET fruit")
}

#[test]
fn a_proxy_passes_everything_and_counts_connections() {
    let (server, proxy) = start();
    assert_eq!(proxy.url(), format!("redis://127.0.0.1:{}/", proxy.port()));
    assert_ne!(proxy.port(), server.port());
    assert_eq!(proxy.accepted(), 0);
    assert_eq!(ping(&server.url_through(&proxy)).unwrap(), "PONG");
    assert_eq!(proxy.accepted(), 1);

    let (mut one, mut other) = (open(&proxy), open(&proxy));
    let long = "x".repeat(1_000_000);
    assert_eq!(asked(&mut one, &format!("*2\r\n$4\r\nECHO\r\n$1000000\r\n{long}")), "$1000000");
    assert_eq!(asked(&mut other, "INCR fruit"), ":1");
    assert_eq!(proxy.accepted(), 3);
}

#[test]
fn a_url_through_a_proxy_has_the_credentials_of_the_server() {
    let server = RedisServer::builder().password("pear").start();
    let proxy = Proxy::start(server.port());
    assert_eq!(ping(&server.url_through(&proxy)).unwrap(), "PONG");
    let server = RedisServer::builder().tls().start();
    let proxy = Proxy::start(server.port());
    assert_eq!(server.url_through(&proxy), server.url().replace(&server.port().to_string(), &proxy.port().to_string()));
}

#[test]
fn a_dropped_proxy_ends_its_connections() {
    let (_server, proxy) = start();
    let (mut connection, port) = (open(&proxy), proxy.port());
    assert_eq!(asked(&mut connection, "PING"), "+PONG");
    drop(proxy);
    assert!(is_closed(&mut connection));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn a_closed_connection_is_closed_on_the_other_side() {
    let (mut server, proxy) = start();
    let clients = |server: &RedisServer| ask::<String>(server, "CLIENT LIST").matches('\n').count();
    let mut connection = open(&proxy);
    assert_eq!(asked(&mut connection, "PING"), "+PONG");
    assert_eq!(clients(&server), 2, "this one and the harness' own");
    drop(connection);
    eventually("the server sees the client's end", || clients(&server) == 1);

    let mut connection = open(&proxy);
    assert_eq!(asked(&mut connection, "PING"), "+PONG");
    server.kill();
    assert!(is_closed(&mut connection));
    let error = open(&proxy).read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "there is no server behind it");
}

#[test]
fn a_stall_holds_requests_until_it_ends() {
    let (server, proxy) = start();
    let mut connection = open(&proxy);
    assert_eq!(asked(&mut connection, "PING"), "+PONG");
    proxy.set(Mode::Stall);
    send(&mut connection, "INCR fruit");
    let mut later = open(&proxy);
    send(&mut later, "INCR fruit");
    assert!(is_silent(&mut connection) && is_silent(&mut later));
    assert_eq!(fruit(&server), None);

    proxy.set(Mode::Pass);
    let mut replies = [receive(&mut connection), receive(&mut later)];
    replies.sort();
    assert_eq!(replies, [":1", ":2"]);
}

#[test]
fn a_stall_holds_replies_too() {
    let (server, proxy) = start();
    let mut connection = open(&proxy);
    send(&mut connection, "BLPOP list 0");
    eventually("the server waits", || ask::<String>(&server, "CLIENT LIST").contains("cmd=blpop"));
    proxy.set(Mode::Stall);
    ask::<i64>(&server, "RPUSH list pear");
    assert!(is_silent(&mut connection));
    proxy.set(Mode::Pass);
    assert_eq!(receive(&mut connection), "*2");
}

#[test]
fn a_delay_holds_bytes_for_its_time() {
    let (server, proxy) = start();
    let mut connection = open(&proxy);
    proxy.set(Mode::Delay(Duration::from_millis(1)));
    assert_eq!(asked(&mut connection, "PING"), "+PONG");
    proxy.set(Mode::Delay(Duration::from_secs(3600)));
    send(&mut connection, "INCR fruit");
    assert!(is_silent(&mut connection));
    assert_eq!(fruit(&server), None);
    proxy.set(Mode::Delay(Duration::from_millis(1)));
    assert_eq!(receive(&mut connection), ":1");
}

#[test]
fn a_dropped_reply_silences_its_connection_for_good() {
    let (server, proxy) = start();
    let (mut connection, mut idle) = (open(&proxy), open(&proxy));
    assert_eq!(asked(&mut connection, "PING"), "+PONG");
    proxy.set(Mode::DropReplies);
    send(&mut connection, "INCR fruit");
    eventually("the request is executed", || fruit(&server) == Some(1));
    assert!(is_silent(&mut connection));

    proxy.set(Mode::Pass);
    send(&mut connection, "INCR fruit");
    eventually("the request is executed", || fruit(&server) == Some(2));
    assert!(is_silent(&mut connection), "the client would take it for the reply to its first request");
    assert_eq!(asked(&mut idle, "INCR fruit"), ":3");
}

#[test]
fn a_refusing_proxy_keeps_its_open_connections() {
    let (_server, proxy) = start();
    let mut connection = open(&proxy);
    assert_eq!(asked(&mut connection, "PING"), "+PONG");
    proxy.set(Mode::Refuse);
    let error = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(asked(&mut connection, "PING"), "+PONG");
    assert_eq!(proxy.accepted(), 1);
    let taken = std::net::TcpListener::bind(("127.0.0.1", proxy.port()));
    assert_eq!(taken.map_err(|error| error.kind()).err(), Some(ErrorKind::AddrInUse));

    proxy.set(Mode::Pass);
    assert_eq!(asked(&mut open(&proxy), "PING"), "+PONG");
}

#[test]
fn a_proxy_cuts_and_resets_open_connections() {
    let (_server, proxy) = start();
    for kind in [None, Some(ErrorKind::ConnectionReset)] {
        let mut both = [open(&proxy), open(&proxy)];
        for connection in &mut both {
            assert_eq!(asked(connection, "PING"), "+PONG");
        }
        if kind.is_none() {
            proxy.cut();
        } else {
            proxy.reset();
        }
        for connection in &mut both {
            assert_eq!(connection.read(&mut [0]).err().map(|error| error.kind()), kind);
        }
        assert_eq!(asked(&mut open(&proxy), "PING"), "+PONG");
    }
}

#[test]
fn a_proxy_cuts_a_stalled_connection_with_the_bytes_it_holds() {
    let (server, proxy) = start();
    let mut connection = open(&proxy);
    assert_eq!(asked(&mut connection, "PING"), "+PONG");
    proxy.set(Mode::Stall);
    send(&mut connection, "INCR fruit");
    assert!(is_silent(&mut connection));
    proxy.cut();
    assert!(is_closed(&mut connection));
    proxy.set(Mode::Pass);
    assert_eq!(asked(&mut open(&proxy), "PING"), "+PONG");
    assert_eq!(fruit(&server), None);
}

#[test]
fn a_proxy_cuts_the_connection_in_place_of_the_next_reply() {
    let (server, proxy) = start();
    let (mut connection, mut idle) = (open(&proxy), open(&proxy));
    assert_eq!(asked(&mut connection, "INCR fruit"), ":1");
    proxy.cut_at_next_reply();
    send(&mut connection, "INCR fruit");
    assert!(is_closed(&mut connection));
    assert_eq!(fruit(&server), Some(2));
    assert_eq!(asked(&mut idle, "INCR fruit"), ":3");
}
