//! TLS on both sides.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;

use crate::errors::ServeError;
use crate::settings::{ReplicaSettings, ReplicaTls, TlsSettings};
use crate::stream::Stream;

/// Accepts TLS from clients.
#[derive(Clone)]
pub struct Acceptor {
    acceptor: tokio_rustls::TlsAcceptor,
    /// What SCRAM-SHA-256-PLUS binds to.
    pub end_point: Option<Vec<u8>>,
    /// Whether clients may also come in the clear.
    pub required: bool,
}

impl Acceptor {
    /// Loads a certificate and its key.
    pub fn load(settings: &TlsSettings) -> Result<Acceptor, ServeError> {
        let failed = |what: &Path, error: &dyn std::fmt::Display| {
            ServeError::Tls(format!("read {}: {error}", what.display()))
        };
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&settings.certificate)
            .and_then(Iterator::collect)
            .map_err(|error| failed(&settings.certificate, &error))?;
        let key =
            PrivateKeyDer::from_pem_file(&settings.key).map_err(|error| failed(&settings.key, &error))?;
        let end_point =
            certificates.first().and_then(|first| onecopy_wire::channel_binding::tls_server_end_point(first));
        let config = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key))
            .map_err(|error| ServeError::Tls(error.to_string()))?;
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        Ok(Acceptor { acceptor, end_point, required: settings.required })
    }

    /// Performs the handshake.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        let stream = self.acceptor.accept(stream).await?;
        Ok(Stream::Tls(Box::new(stream.into())))
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Performs the handshake with a replica that has agreed to TLS.
pub async fn connect(stream: TcpStream, address: &ReplicaSettings) -> io::Result<Stream> {
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let config = match &address.tls {
        ReplicaTls::VerifyFull { root } => {
            let mut roots = rustls::RootCertStore::empty();
            for certificate in CertificateDer::pem_file_iter(root).map_err(io::Error::other)? {
                roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        _ => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified(provider())))
            .with_no_client_auth(),
    };
    let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok(Stream::Tls(Box::new(stream.into())))
}

/// Encrypts connections between nodes. Their certificates are made at each start and say nothing: who the other side is, it proves by what both know of
/// this very connection ([`Binding`]), so whoever stands between two nodes is found out.
pub struct BetweenNodes {
    acceptor: tokio_rustls::TlsAcceptor,
    connector: tokio_rustls::TlsConnector,
}

/// What both ends of an encrypted connection know, and nobody else (RFC 5705, RFC 9266).
pub type Binding = [u8; 32];

/// The label of [`Binding`].
const BINDING_LABEL: &[u8] = b"EXPORTER-onecopy-nodes";
/// Whom certificates between nodes are made for.
const BETWEEN_NODES: &str = "node.onecopy.invalid";

impl BetweenNodes {
    /// With a new certificate.
    ///
    /// # Errors
    /// When none can be made.
    pub fn new() -> io::Result<BetweenNodes> {
        let made =
            rcgen::generate_simple_self_signed([BETWEEN_NODES.to_owned()]).map_err(io::Error::other)?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(io::Error::other)?;
        let server = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|builder| {
                builder.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key)
            })
            .map_err(io::Error::other)?;
        let client = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified(provider())))
            .with_no_client_auth();
        Ok(BetweenNodes {
            acceptor: tokio_rustls::TlsAcceptor::from(Arc::new(server)),
            connector: tokio_rustls::TlsConnector::from(Arc::new(client)),
        })
    }

    /// The side that connects.
    pub async fn connect(&self, stream: TcpStream) -> io::Result<(Stream, Binding)> {
        let name = ServerName::try_from(BETWEEN_NODES).map_err(io::Error::other)?;
        let stream = self.connector.connect(name, stream).await?;
        let binding = stream.get_ref().1.export_keying_material([0; 32], BINDING_LABEL, None);
        Ok((Stream::Tls(Box::new(stream.into())), binding.map_err(io::Error::other)?))
    }

    /// The side that listens.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<(Stream, Binding)> {
        let stream = self.acceptor.accept(stream).await?;
        let binding = stream.get_ref().1.export_keying_material([0; 32], BINDING_LABEL, None);
        Ok((Stream::Tls(Box::new(stream.into())), binding.map_err(io::Error::other)?))
    }
}

/// `require` means encrypted and nothing more, as in libpq; between nodes, who the other side is shows otherwise.
#[derive(Debug)]
struct Unverified(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signature, algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signature, algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
