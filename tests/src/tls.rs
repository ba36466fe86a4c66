//! Certificates of a server that speaks TLS, made anew for each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

/// The PEM files a client may want, in the folder of the server.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The authority that signed the server's certificate and the client's. No system trusts it.
    pub ca_pem: PathBuf,
    /// A certificate for the client. The server takes it, and also goes without one
    /// unless it was started with `.arg("--tls-auth-clients", "yes")`.
    pub client_cert_pem: PathBuf,
    /// The key of the client's certificate.
    pub client_key_pem: PathBuf,
    server_cert_pem: PathBuf,
    server_key_pem: PathBuf,
}

impl TlsFiles {
    /// `rsa_bits`: the length of the server's RSA key, which is elliptic without it.
    pub(crate) fn create(folder: &Path, rsa_bits: Option<u32>) -> Self {
        let mut ca = params(&[], "ratelimit test authority");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, key()).expect("a certificate");

        let mut server = params(&["localhost", "127.0.0.1"], "localhost");
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let (server_cert_pem, server_key_pem) =
            write_signed(folder, "server", &server, &rsa_bits.map_or_else(key, rsa_key), &ca);

        let mut client = params(&[], "ratelimit test client");
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (client_cert_pem, client_key_pem) = write_signed(folder, "client", &client, &key(), &ca);

        TlsFiles {
            ca_pem: write(folder, "ca.pem", &ca.pem()),
            client_cert_pem,
            client_key_pem,
            server_cert_pem,
            server_key_pem,
        }
    }

    /// The arguments of `redis-server` for these files.
    pub(crate) fn server_args(&self) -> [(&'static str, &Path); 6] {
        [
            ("--tls-ca-cert-file", &self.ca_pem),
            ("--tls-cert-file", &self.server_cert_pem),
            ("--tls-key-file", &self.server_key_pem),
            ("--tls-auth-clients", Path::new("optional")),
            // Servers call each other, too.
            ("--tls-client-cert-file", &self.client_cert_pem),
            ("--tls-client-key-file", &self.client_key_pem),
        ]
    }
}

/// Valid from 1975 to 4096, so that a controlled clock may show about any time.
fn params(names: &[&str], common_name: &str) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).expect("names a certificate may have");
    params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
    params
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

/// Made by `openssl`, as the library here can use such keys and not make them.
fn rsa_key(bits: u32) -> KeyPair {
    let mut command = Command::new("openssl");
    command.args(["genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", &format!("rsa_keygen_bits:{bits}")]);
    let output = command.output().unwrap_or_else(|error| panic!("cannot run `openssl`: {error}; install it"));
    assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    KeyPair::from_pem(&String::from_utf8_lossy(&output.stdout)).expect("a key in PEM")
}

fn write_signed(
    folder: &Path,
    name: &str,
    params: &CertificateParams,
    key: &KeyPair,
    ca: &CertifiedIssuer<'_, KeyPair>,
) -> (PathBuf, PathBuf) {
    let cert = params.signed_by(key, ca).expect("a certificate");
    (write(folder, &format!("{name}.pem"), &cert.pem()), write(folder, &format!("{name}.key"), &key.serialize_pem()))
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    path
}
