//! Precedence, errors that name what is wrong, and the documentation against the table.

use std::fmt::Write;

use super::settings::{Default, Kind, SETTINGS};
use super::*;

/// A file that exists.
const THIS: &str = "/bin/sh";

fn option(name: &str, value: Value) -> NamedValue {
    NamedValue { name: name.to_owned(), value }
}

/// A configuration from these variables and options, with a plugin and a worker that exist.
fn load(options: &[NamedValue], variables: &[(&str, &str)]) -> Result<Config, String> {
    let always = [("MAINSTAY_PLUGIN", THIS), ("MAINSTAY_WORKER", THIS), ("HOME", "/")];
    let variables = always.iter().chain(variables).map(|(name, value)| (name.into(), value.into()));
    Config::from_sources(options, variables)
}

#[test]
fn defaults_are_those_of_the_table() {
    let config = load(&[], &[]).unwrap();
    assert_eq!((config.slices, config.devices_per_slice, config.spares), (1, None, 0));
    assert_eq!(config.policy(), Policy::default());
    assert!(config.host_memory >= 16 << 20);
    assert_eq!((config.compiler, config.worker_output_lines), (CompilerPlace::Auto, 50));
    assert!(config.inner_options().is_empty());
}

#[test]
fn options_win_over_variables_in_any_type() {
    let variables = [("MAINSTAY_SLICES", "3"), ("MAINSTAY_START_TIMEOUT", "7"), ("MAINSTAY_HOST_MEMORY", "1G")];
    let options = [
        option("slices", Value::Int64(2)),
        option("replace_backoff", Value::Float(0.5)),
        option("worker_output_echo", Value::Bool(true)),
        option("compiler", Value::String("worker".into())),
        option("heartbeat_timeout", Value::Int64(30)),
    ];
    let config = load(&options, &variables).unwrap();
    assert_eq!((config.slices, config.start_timeout), (2, Duration::from_secs(7)));
    assert_eq!((config.host_memory, config.replace_backoff), (1 << 30, Duration::from_millis(500)));
    assert!(config.worker_output_echo);
    assert_eq!(config.compiler, CompilerPlace::Worker);
    assert_eq!(config.heartbeat_timeout, Some(Duration::from_secs(30)));
}

#[test]
fn the_inner_plugin_gets_its_options() {
    let config = load(&[], &[("MAINSTAY_DEVICES_PER_SLICE", "4"), ("MAINSTAY_PLUGIN_OPTIONS", "fast=true")]).unwrap();
    let expected = [option("cpu_device_count", Value::Int64(4)), option("fast", Value::Bool(true))];
    assert_eq!(config.inner_options(), expected);
    let twice = [("MAINSTAY_DEVICES_PER_SLICE", "4"), ("MAINSTAY_PLUGIN_OPTIONS", "cpu_device_count=3")];
    assert!(load(&[], &twice).unwrap_err().contains("give one"));
}

#[test]
fn bad_values_are_named() {
    for (name, value) in [
        ("MAINSTAY_SLICES", "0"),
        ("MAINSTAY_SLICES", ""),
        ("MAINSTAY_SLICES", "1.5"),
        ("MAINSTAY_SLICES", "1000000"),
        ("MAINSTAY_DEVICES_PER_SLICE", "-3"),
        ("MAINSTAY_HOST_MEMORY", "1K"),
        ("MAINSTAY_HOST_MEMORY_NODES", "1023"),
        ("MAINSTAY_START_TIMEOUT", "soon"),
        ("MAINSTAY_START_TIMEOUT", "0"),
        ("MAINSTAY_PROGRESS_TIMEOUT", "1ms"),
        ("MAINSTAY_WORKER_OUTPUT_ECHO", "perhaps"),
        ("MAINSTAY_COMPILER", "cloud"),
        ("MAINSTAY_ISOLATION", "none"),
        ("MAINSTAY_PLUGIN", "/nowhere/plugin.so"),
        ("MAINSTAY_PLUGIN", ""),
        ("MAINSTAY_PLUGIN_OPTIONS", "a"),
    ] {
        let error = load(&[], &[(name, value)]).unwrap_err();
        assert!(error.starts_with(&format!("{name}={value}: ")), "{error}");
    }
    let error = load(&[option("slices", Value::Int64(0))], &[]).unwrap_err();
    assert_eq!(error, "create option slices=0: give a whole number from 1 to 32");
    let error = load(&[option("slices", Value::Int64List(vec![1]))], &[]).unwrap_err();
    assert!(error.contains("create option slices"), "{error}");
    assert!(load(&[], &[("MAINSTAY_REPLACE_BACKOFF", "1h")]).unwrap_err().contains("replace_backoff_max"));
}

#[test]
fn unknown_names_are_named_and_the_known_listed() {
    let error = load(&[], &[("MAINSTAY_SLICE_COUNT", "2")]).unwrap_err();
    assert!(error.contains("MAINSTAY_SLICE_COUNT") && error.contains("MAINSTAY_SLICES,"), "{error}");
    let error = load(&[option("slicez", Value::Int64(2))], &[]).unwrap_err();
    assert!(error.contains("slicez") && error.contains("slices,") && error.contains("plugin_options"), "{error}");
    let twice = [option("slices", Value::Int64(2)), option("slices", Value::Int64(3))];
    assert!(load(&twice, &[]).unwrap_err().contains("twice"));
    assert!(load(&[], &[("MAINSTAY_LIBRARY", "x"), ("MAINSTAY_TEST_PLUGIN", "y")]).is_ok());
}

#[test]
fn a_plugin_must_be_named() {
    let error = Config::from_sources(&[], [("MAINSTAY_WORKER".into(), THIS.into())]).unwrap_err();
    assert!(error.contains("MAINSTAY_PLUGIN"), "{error}");
}

#[test]
fn our_own_words_are_never_taken_for_a_lost_slice() {
    let words = ["DATA_LOSS", "INTERNAL", "NOT_FOUND", "DEADLINE_EXCEEDED"];
    let text = reference();
    assert!(words.iter().all(|word| !text.contains(word)));
}

#[test]
fn mainstay_does_not_wrap_itself() {
    let error = load(&[option("plugin", Value::String("/proc/self/exe".into()))], &[]).unwrap_err();
    assert!(error.contains("/proc/self/exe is Mainstay itself"), "{error}");
}

/// The reference table of `docs/configuration.md`.
fn reference() -> String {
    let mut text = String::from("| variable | create option | value | default | meaning |\n|---|---|---|---|---|\n");
    for setting in SETTINGS {
        let kind = match setting.kind {
            Kind::Path => "path".to_owned(),
            Kind::Count(least, most) => format!("{least} … {most}"),
            Kind::Size(least) => format!("bytes, at least {}M", least >> 20),
            Kind::Nodes => "`auto`, `interleave`, or nodes as `0` or `0-1,3`".to_owned(),
            Kind::Time(0) => "time".to_owned(),
            Kind::Time(least) => format!("time, at least {least}ms"),
            Kind::Bound(least) => format!("time, at least {least}ms, or `off`"),
            Kind::Flag => "`true`, `false`".to_owned(),
            Kind::Choice(choices) => format!("`{}`", choices.join("`, `")),
            Kind::Text => "text".to_owned(),
            Kind::NamedValues => "names and values".to_owned(),
        };
        let default = match setting.default {
            Default::Value("") => "empty".to_owned(),
            Default::Value(value) => format!("`{value}`"),
            Default::Found(words) => words.to_owned(),
        };
        let (variable, name, meaning) = (setting.variable(), setting.name, setting.meaning);
        writeln!(text, "| `{variable}` | `{name}` | {kind} | {default} | {meaning} |").unwrap();
    }
    text
}

/// Fails where documentation and table differ; with `MAINSTAY_TEST_WRITE_DOCS` set, writes the documentation.
#[test]
fn the_documentation_has_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- table: made from src/config/settings.rs -->\n", "<!-- end of table -->");
    let (before, rest) = text.split_once(begin).unwrap();
    let (table, after) = rest.split_once(end).unwrap();
    if table != reference() && std::env::var_os("MAINSTAY_TEST_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{begin}{}{end}{after}", reference())).unwrap();
        return;
    }
    assert!(table == reference(), "run: MAINSTAY_TEST_WRITE_DOCS=1 cargo test the_documentation_has_the_table");
}
