//! SCRAM: both sides against each other, the server's side against another implementation's client, and every
//! message that must be refused.

use onecopy_wire::scram::{
    Binding, Client, Credential, ITERATIONS_MAX, Keys, NONCE_LEN, SCRAM_SHA_256, SCRAM_SHA_256_PLUS,
    ScramError, Server, Verifier, VerifierError,
};
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};

const SALT: &[u8] = b"sixteen bytes of";
const CLIENT_NONCE: [u8; NONCE_LEN] = [1; NONCE_LEN];
const SERVER_NONCE: [u8; NONCE_LEN] = [2; NONCE_LEN];
const END_POINT: &[u8] = b"hash of a certificate";

/// Few iterations: what they cost is not what is tested.
fn verifier(password: &str) -> Verifier {
    Verifier::from_password(password, SALT, 16)
}

fn server(end_point: Option<&[u8]>) -> Server {
    Server::new(verifier("secret"), SERVER_NONCE, end_point.map(<[u8]>::to_vec))
}

fn client(password: &str, binding: Binding) -> Client {
    Client::new(Credential::Password(password.to_owned()), CLIENT_NONCE, binding)
}

/// A whole exchange; the client's keys and the server's.
fn exchange(client: Client, server: Server) -> Result<(Keys, Keys), ScramError> {
    let (client, hello) = client.hello(server.mechanisms().iter().copied())?;
    let (server, first) = server.on_client_first(hello.mechanism, hello.message.as_bytes())?;
    let (client, proof) = client.on_server_first(first.as_bytes())?;
    let (authenticated, last) = server.on_client_final(proof.as_bytes())?;
    Ok((client.on_server_final(last.as_bytes())?, authenticated.into_keys()))
}

#[test]
fn both_sides_agree_with_and_without_binding() {
    for (binding, end_point, mechanism) in [
        (Binding::Unavailable, None, SCRAM_SHA_256),
        (Binding::Unavailable, Some(END_POINT), SCRAM_SHA_256),
        (Binding::Preferred(END_POINT.to_vec()), None, SCRAM_SHA_256),
        (Binding::Preferred(END_POINT.to_vec()), Some(END_POINT), SCRAM_SHA_256_PLUS),
        (Binding::Required(END_POINT.to_vec()), Some(END_POINT), SCRAM_SHA_256_PLUS),
    ] {
        let (_, hello) =
            client("secret", binding.clone()).hello(server(end_point).mechanisms().to_vec()).unwrap();
        assert_eq!(hello.mechanism, mechanism);
        let (of_client, of_server) = exchange(client("secret", binding), server(end_point)).unwrap();
        assert!(of_client == of_server, "the proof reveals the client's keys");
        let by_keys = Client::new(Credential::Keys(of_server), CLIENT_NONCE, Binding::Unavailable);
        assert!(exchange(by_keys, server(end_point)).is_ok(), "which suffice for the next exchange");
    }
}

#[test]
fn the_client_of_postgres_protocol_is_accepted() {
    for password in ["secret", "", "pässwörd", "I\u{ad}X", "bell\u{7}", "a\u{a0}b", "with,comma=and\\"] {
        for (binding, end_point, mechanism) in [
            (ChannelBinding::unsupported(), None, SCRAM_SHA_256),
            (ChannelBinding::unsupported(), Some(END_POINT), SCRAM_SHA_256),
            (ChannelBinding::unrequested(), None, SCRAM_SHA_256),
            (ChannelBinding::tls_server_end_point(END_POINT.to_vec()), Some(END_POINT), SCRAM_SHA_256_PLUS),
        ] {
            let mut theirs = ScramSha256::new(password.as_bytes(), binding);
            let ours = Server::new(verifier(password), SERVER_NONCE, end_point.map(<[u8]>::to_vec));
            let (ours, first) = ours.on_client_first(mechanism, theirs.message()).unwrap();
            theirs.update(first.as_bytes()).unwrap();
            let (_, last) = ours.on_client_final(theirs.message()).unwrap();
            theirs.finish(last.as_bytes()).unwrap();
        }
    }
}

#[test]
fn a_wrong_password_and_an_unknown_user_look_the_same() {
    let unknown = || Server::new(Verifier::mock(b"key", "nobody", &[16]), SERVER_NONCE, None);
    assert_eq!(exchange(client("wrong", Binding::Unavailable), server(None)), Err(ScramError::ProofMismatch));
    assert_eq!(exchange(client("secret", Binding::Unavailable), unknown()), Err(ScramError::ProofMismatch));

    let first = |server: Server| server.on_client_first(SCRAM_SHA_256, b"n,,n=,r=abc").unwrap().1;
    assert_eq!(first(unknown()).len(), first(server(None)).len(), "the same salt's length");
    assert_eq!(first(unknown()), first(unknown()), "the same salt at every attempt");
    let other_name = Server::new(Verifier::mock(b"key", "nobody2", &[16]), SERVER_NONCE, None);
    assert_ne!(first(unknown()), first(other_name));
    let other_key = Server::new(Verifier::mock(b"key2", "nobody", &[16]), SERVER_NONCE, None);
    assert_ne!(first(unknown()), first(other_key));
    assert!(!Verifier::mock(b"key", "nobody", &[16]).accepts(""));
}

#[test]
fn unknown_users_ask_for_the_iterations_of_real_ones_in_their_proportion() {
    let of = |user: &str, real: &[u32]| Verifier::mock(b"key", user, real).iterations();
    let names: Vec<String> = (0..400).map(|number| format!("nobody{number}")).collect();
    assert!(names.iter().all(|name| of(name, &[777]) == 777));
    let many = names.iter().filter(|name| of(name, &[10, 20, 20, 20]) == 20).count();
    assert!((250..350).contains(&many), "{many} of 400 instead of about 300");
    assert!(names.iter().all(|name| of(name, &[10, 20]) == of(name, &[10, 20])), "always the same");
    assert_eq!(of("nobody", &[]), 4096);
}

#[test]
fn a_clear_password_is_checked_against_a_verifier() {
    assert!(verifier("I\u{ad}X").accepts("IX"));
    assert!(!verifier("secret").accepts("Secret"));
}

#[test]
fn a_verifier_survives_its_text() {
    let verifier = verifier("secret");
    assert!(Verifier::parse(&verifier.to_text()).unwrap() == verifier);
}

#[test]
fn what_is_no_verifier_is_refused_without_repeating_it() {
    let good = verifier("secret").to_text();
    let (key, short) = ("A".repeat(43) + "=", "A".repeat(42) + "==");
    for text in [
        String::new(),
        "secret".to_owned(),
        "md5d41d8cd98f00b204e9800998ecf8427e".to_owned(),
        good.replace("256$", "1$"),
        good.replace("$16:", "$0:"),
        good.replace("$16:", "$-1:"),
        good.replace("$16:", "$+16:"),
        good.replace("$16:", "$016:"),
        good.replace("$16:", "$:"),
        good.replace("$16:", "$99999999999:"),
        format!("{good}="),
        format!("{good}:"),
        good[..good.len() - 4].to_owned(),
        format!("SCRAM-SHA-256$1:${key}:{key}"),
        format!("SCRAM-SHA-256$1:AAAA${short}:{key}"),
        format!("SCRAM-SHA-256$1:AAAA${key}:{short}"),
        format!("SCRAM-SHA-256$1:{}${key}:{key}", "AAAA".repeat(1000)),
    ] {
        assert!(Verifier::parse(&text) == Err(VerifierError), "{text}");
    }
    assert!(!VerifierError.to_string().contains("secret"));
}

#[test]
fn debug_output_holds_no_secret() {
    let keys = Keys::derive("secret", SALT, 1);
    let shown = format!("{keys:?} {:?} {:?}", verifier("secret"), Credential::Password("secret".to_owned()));
    assert_eq!(shown, "Keys { iterations: 1, .. } Verifier { iterations: 16, .. } Password");
}

fn client_first_error(mechanism: &str, end_point: Option<&[u8]>, message: &[u8]) -> Option<ScramError> {
    server(end_point).on_client_first(mechanism, message).err()
}

#[test]
fn first_messages_of_clients_that_must_be_refused() {
    use ScramError::*;
    let plain = |message: &str| client_first_error(SCRAM_SHA_256, None, message.as_bytes());
    for message in [
        "",
        ",",
        ",,",
        "n",
        "n,",
        "n,,",
        "n,,n=",
        "n,,n=,",
        "n,,n=,r",
        "n,,r=abc",
        "n,,r=abc,n=",
        "x,,n=,r=abc",
        "n,,n=,r=",
        "n,,n=,r=a b",
        "n,,n=,r=ab\u{7f}",
        "n,,n=,r=\u{e4}",
        "n,,n=,r=abc,",
        "n,,n=,r=abc,x",
        "n,,n=,r=abc,x=",
        "n,,n=,r=abc,1=2",
        "n,,n=,x=1,r=abc",
        "nn,,n=,r=abc",
        "user=postgres\0database=x\0\0",
    ] {
        assert!(matches!(plain(message), Some(Malformed { .. })), "{message:?}: {:?}", plain(message));
    }
    assert!(matches!(client_first_error(SCRAM_SHA_256, None, b"n,,n=,r=\xff"), Some(Malformed { .. })));
    assert_eq!(plain("n,,n=user,r=abc"), None, "a name is allowed and ignored");
    assert_eq!(plain("n,,n=,r=abc,x=later"), None, "optional extensions are ignored");
    assert_eq!(plain("n,,m=1,n=,r=abc"), Some(MandatoryExtension));
    assert_eq!(plain("n,a=admin,n=,r=abc"), Some(AuthorizationIdentity));
    assert_eq!(plain("y,,n=,r=abc"), None);
    let giant = format!("n,,n=,r={}", "x".repeat(257));
    assert_eq!(plain(&giant), Some(TooLong { what: "nonce", len: 257, max: 256 }));
    let giant = format!("n,,n={},r=abc", "x".repeat(5000));
    assert!(matches!(plain(&giant), Some(TooLong { .. })));

    for (mechanism, end_point, message, error) in [
        (SCRAM_SHA_256_PLUS, None, "p=tls-server-end-point,,n=,r=abc", MechanismNotOffered),
        ("SCRAM-SHA-1", None, "n,,n=,r=abc", MechanismNotOffered),
        ("", None, "n,,n=,r=abc", MechanismNotOffered),
        (SCRAM_SHA_256, None, "p=tls-server-end-point,,n=,r=abc", BindingFlag),
        (SCRAM_SHA_256, Some(END_POINT), "p=tls-server-end-point,,n=,r=abc", BindingFlag),
        (SCRAM_SHA_256, Some(END_POINT), "y,,n=,r=abc", BindingDowngraded),
        (SCRAM_SHA_256_PLUS, Some(END_POINT), "y,,n=,r=abc", BindingFlag),
        (SCRAM_SHA_256_PLUS, Some(END_POINT), "n,,n=,r=abc", BindingFlag),
        (SCRAM_SHA_256_PLUS, Some(END_POINT), "p=tls-unique,,n=,r=abc", BindingFlag),
    ] {
        assert_eq!(
            client_first_error(mechanism, end_point, message.as_bytes()),
            Some(error),
            "{mechanism} {message}"
        );
    }
}

#[test]
fn last_messages_of_clients_that_must_be_refused() {
    use ScramError::*;
    let (awaiting_first, hello) = client("secret", Binding::Unavailable).hello([SCRAM_SHA_256]).unwrap();
    let at_final = || server(None).on_client_first(SCRAM_SHA_256, hello.message.as_bytes()).unwrap();
    let (_, good) = awaiting_first.on_server_first(at_final().1.as_bytes()).unwrap();
    let answer = |message: &str| at_final().0.on_client_final(message.as_bytes()).err();
    assert_eq!(answer(&good), None);

    let (signed, proof) = good.rsplit_once(",p=").unwrap();
    let flipped = if proof.starts_with('A') { 'B' } else { 'A' };
    for (message, error) in [
        (good.replace("c=biws", "c=eSws"), BindingMismatch),
        (good.replace("c=biws", "c="), BindingMismatch),
        (good.replace(",p=", "x,p="), NonceMismatch),
        (good.replace(",r=", ",r=x"), NonceMismatch),
        (format!("{signed},m=1,p={proof}"), MandatoryExtension),
        (format!("{signed},x=1,p={proof}"), ProofMismatch),
        (format!("{signed},p={flipped}{}", &proof[1..]), ProofMismatch),
        (format!("{signed},p={}=", "A".repeat(43)), ProofMismatch),
    ] {
        assert_eq!(answer(&message), Some(error), "{message}");
    }
    for message in [
        String::new(),
        signed.to_owned(),
        format!("{signed},p="),
        format!("{signed},p=AAAA"),
        format!("{signed},p={proof},x=1"),
        format!("{signed},p={proof}="),
        format!("{signed},p= {proof}"),
        format!("r=abc,c=biws,p={proof}"),
        format!("{signed},,p={proof}"),
        hello.message.clone(),
        "\0\0\0\u{8}user\0postgres\0\0".to_owned(),
    ] {
        assert!(matches!(answer(&message), Some(Malformed { .. })), "{message}: {:?}", answer(&message));
    }
    assert!(matches!(answer(&"x".repeat(5000)), Some(TooLong { .. })));
}

#[test]
fn a_client_bound_to_another_connection_is_refused() {
    let intercepted =
        exchange(client("secret", Binding::Required(b"another".to_vec())), server(Some(END_POINT)));
    assert_eq!(intercepted, Err(ScramError::BindingMismatch));
}

#[test]
fn a_client_refuses_what_it_was_not_offered() {
    use ScramError::*;
    let choose = |binding, offered: &[&str]| client("secret", binding).hello(offered.to_vec()).err();
    assert_eq!(choose(Binding::Unavailable, &[]), Some(NoMechanism));
    assert_eq!(choose(Binding::Unavailable, &["SCRAM-SHA-1", "EXTERNAL"]), Some(NoMechanism));
    assert_eq!(choose(Binding::Unavailable, &[SCRAM_SHA_256_PLUS]), Some(NoMechanism));
    assert_eq!(choose(Binding::Required(vec![1]), &[SCRAM_SHA_256]), Some(BindingNotOffered));
}

#[test]
fn messages_of_servers_that_must_be_refused() {
    use ScramError::*;
    let awaiting = || client("secret", Binding::Unavailable).hello([SCRAM_SHA_256]).unwrap();
    let ours = awaiting().1.message.rsplit_once("r=").unwrap().1.to_owned();
    let first = |message: &str| awaiting().0.on_server_first(message.as_bytes()).err();
    assert_eq!(first(&format!("r={ours}x,s=AAAA,i=1")), None);
    assert_eq!(first(&format!("r={ours}x,s=AAAA,i=1,x=1")), None, "optional extensions are ignored");

    let too_many = Iterations { iterations: ITERATIONS_MAX + 1, max: ITERATIONS_MAX };
    assert_eq!(first(&format!("r={ours}x,s=AAAA,i={}", ITERATIONS_MAX + 1)), Some(too_many));
    let far_too_many = Iterations { iterations: u32::MAX, max: ITERATIONS_MAX };
    assert_eq!(first(&format!("r={ours}x,s=AAAA,i=99999999999999999999")), Some(far_too_many));
    assert_eq!(first(&format!("r={ours},s=AAAA,i=1")), Some(NonceMismatch), "the server adds nothing");
    assert_eq!(first("r=somebody-elses-nonce-that-is-long-enough,s=AAAA,i=1"), Some(NonceMismatch));
    assert_eq!(first(&format!("m=1,r={ours}x,s=AAAA,i=1")), Some(MandatoryExtension));
    assert!(matches!(first(&format!("r={ours}{},s=AAAA,i=1", "x".repeat(300))), Some(TooLong { .. })));
    assert!(matches!(first(&format!("r={ours}x,s={},i=1", "AAAA".repeat(500))), Some(TooLong { .. })));
    assert!(matches!(first(&"x".repeat(5000)), Some(TooLong { .. })));
    for rest in [
        "",
        ",s=AAAA",
        ",s=AAAA,i=",
        ",s=,i=1",
        ",s=*,i=1",
        ",s=AAAA,i=0",
        ",s=AAAA,i=-1",
        ",s=AAAA,i=1x",
        ",i=1,s=AAAA",
        ",s=AAAA,i=1,",
        ",s=AAAA,i=1,x",
    ] {
        let error = first(&format!("r={ours}x{rest}"));
        assert!(matches!(error, Some(Malformed { .. })), "{rest}: {error:?}");
    }

    let last = |message: &str| {
        let (awaiting, _) = awaiting().0.on_server_first(format!("r={ours}x,s=AAAA,i=1").as_bytes()).unwrap();
        awaiting.on_server_final(message.as_bytes()).err()
    };
    assert_eq!(last("e=invalid-proof\u{1b}[31m"), Some(Refused { reason: "invalid-proof".to_owned() }));
    assert_eq!(last(&format!("v={}=", "A".repeat(43))), Some(ServerSignatureMismatch));
    for message in ["", "v=", "v=AAAA", "x=1", "v", "ok"] {
        assert!(matches!(last(message), Some(Malformed { .. })), "{message}");
    }
}

#[test]
fn kept_keys_are_not_used_for_another_salt() {
    let keys = Keys::derive("secret", b"another salt", 16);
    let client = Client::new(Credential::Keys(keys), CLIENT_NONCE, Binding::Unavailable);
    assert_eq!(exchange(client, server(None)), Err(ScramError::KeysDoNotFit));
}
