//! Reading values. Every error says what is allowed; the caller adds the setting and the value.

use std::path::PathBuf;
use std::time::Duration;

use super::settings::Kind;
use crate::wire::message::{NamedValue, Value};
use crate::wire::numa::{Numbers, Placement};

/// The longest time that can be set.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A path of a file. One without a `/` is left to the loader's search path.
pub fn path(value: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(value);
    if value.is_empty() {
        return Err("empty; give the path of a file".to_owned());
    }
    if value.contains('/') && !path.is_file() {
        return Err("there is no such file".to_owned());
    }
    Ok(path)
}

/// A whole number within the bounds of its kind.
pub fn count(value: &str, kind: Kind) -> Result<u32, String> {
    let (least, most) = if let Kind::Count(least, most) = kind { (least, most) } else { (0, u32::MAX) };
    let number = value.trim().parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("give a whole number from {least} to {most}"))
}

/// Bytes, with a binary suffix or none.
pub fn size(value: &str, kind: Kind) -> Result<u64, String> {
    let least = if let Kind::Size(least) = kind { least } else { 0 };
    let wrong = || format!("give bytes, or a number with K, M, G or T, of at least {}M", least >> 20);
    let text = value.trim().to_ascii_uppercase();
    let text = text.strip_suffix("IB").or_else(|| text.strip_suffix('B')).unwrap_or(&text);
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let bytes = digits.trim().parse::<f64>().ok().map(|number| number * (1u64 << shift) as f64);
    // Up to where every whole number has an f64 of its own.
    let fits = |bytes: &f64| (least as f64..=(1u64 << 53) as f64).contains(bytes);
    bytes.filter(fits).map(|bytes| bytes as u64).ok_or_else(wrong)
}

/// Where memory lies, among the nodes that can be used.
pub fn nodes(value: &str, usable: &Numbers) -> Result<Placement, String> {
    let listed = match value.trim() {
        "auto" => return Ok(Placement::Auto),
        "interleave" => return Ok(Placement::Over(usable.clone())),
        list => Numbers::parse(list).filter(|nodes| !nodes.is_empty() && nodes.is_subset(usable)),
    };
    listed.map(Placement::Over).ok_or_else(|| {
        format!(
            "give auto, interleave, or a list of NUMA nodes; those with memory that this process may use are {usable}"
        )
    })
}

/// A time, in seconds or with a unit.
pub fn time(value: &str, kind: Kind) -> Result<Duration, String> {
    let least = if let Kind::Time(least) | Kind::Bound(least) = kind { least } else { 0 };
    let wrong = || format!("give seconds, or a number with ms, s, m or h, from {least}ms to a day");
    let text = value.trim();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let seconds: f64 = digits.trim().parse().map_err(|_| wrong())?;
    let allowed = Duration::from_millis(least)..=DAY;
    Duration::try_from_secs_f64(seconds * unit).ok().filter(|time| allowed.contains(time)).ok_or_else(wrong)
}

/// A time, or `off`.
pub fn bound(value: &str, kind: Kind) -> Result<Option<Duration>, String> {
    if value.trim() == "off" {
        return Ok(None);
    }
    time(value, kind).map(Some).map_err(|error| format!("{error}, or off"))
}

/// Yes or no.
pub fn flag(value: &str) -> Result<bool, String> {
    match value.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("give true or false".to_owned()),
    }
}

/// One of the kind's choices.
pub fn choice(value: &str, kind: Kind) -> Result<String, String> {
    let choices = if let Kind::Choice(choices) = kind { choices } else { &[] };
    let value = value.trim();
    if choices.contains(&value) { Ok(value.to_owned()) } else { Err(format!("known is only {}", choices.join(", "))) }
}

/// `name=value;…`, with each value's type guessed.
pub fn named_values(value: &str) -> Result<Vec<NamedValue>, String> {
    let mut all: Vec<NamedValue> = Vec::new();
    for part in split_outside_quotes(value)? {
        let part = part.trim();
        if part.is_empty() {
            continue;
        }
        let named = part.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        let Some((name, value)) = named.filter(|(name, _)| !name.is_empty()) else {
            return Err(format!("{part:?} is not of the form name=value"));
        };
        if all.iter().any(|other| other.name == name) {
            return Err(format!("{name} is given twice"));
        }
        all.push(NamedValue { name: name.to_owned(), value: typed(value) });
    }
    Ok(all)
}

/// The parts between semicolons that don't stand in double quotes.
fn split_outside_quotes(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut quoted) = (Vec::new(), 0, false);
    for (at, letter) in text.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            ';' if !quoted => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    if quoted { Err("a double quote is not closed".to_owned()) } else { Ok(parts) }
}

fn typed(text: &str) -> Value {
    if let Some(quoted) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        return Value::String(quoted.to_owned());
    }
    if let Ok(number) = text.parse() {
        return Value::Int64(number);
    }
    if let Ok(flag) = text.parse() {
        return Value::Bool(flag);
    }
    let looks_like_float = text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first));
    if let (true, Ok(number)) = (looks_like_float, text.parse()) {
        return Value::Float(number);
    }
    list(text).map_or_else(|| Value::String(text.to_owned()), Value::Int64List)
}

fn list(text: &str) -> Option<Vec<i64>> {
    let inside = text.strip_prefix('[')?.strip_suffix(']')?.trim();
    if inside.is_empty() {
        return Some(Vec::new());
    }
    inside.split(',').map(|number| number.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let kind = Kind::Size(1 << 20);
        for (text, bytes) in
            [("1048576", 1 << 20), ("2M", 2 << 20), ("1.5g", 3 << 29), ("1 GiB", 1 << 30), ("1tb", 1 << 40)]
        {
            assert_eq!(size(text, kind), Ok(bytes), "{text}");
        }
        for text in ["", "M", "1K", "-1G", "1Q", "1MM", "nan", "inf", "9999999T", "G1"] {
            assert!(size(text, kind).is_err(), "{text}");
        }
    }

    #[test]
    fn nodes_are_among_those_that_can_be_used() {
        let usable = Numbers::parse("0-1,3").unwrap();
        let over = |list: &str| Ok(Placement::Over(Numbers::parse(list).unwrap()));
        assert_eq!(nodes("auto", &usable), Ok(Placement::Auto));
        assert_eq!(nodes(" interleave", &usable), over("0-1,3"));
        assert_eq!(nodes("1", &usable), over("1"));
        assert_eq!(nodes("3,0-1 ", &usable), over("0-1,3"));
        for text in ["", "2", "0-3", "all", "-1", "1-0", "0;1"] {
            assert!(nodes(text, &usable).unwrap_err().ends_with("are 0-1,3"), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, milliseconds) in
            [("2", 2000), ("0", 0), ("1.5s", 1500), ("20ms", 20), ("2 m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(time(text, Kind::Time(0)), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "s", "-1", "1d", "25h", "nan", "inf", "ten"] {
            assert!(time(text, Kind::Time(0)).is_err(), "{text}");
        }
        assert!(time("99ms", Kind::Time(100)).unwrap_err().contains("100ms"));
        assert_eq!(bound("off", Kind::Bound(1)), Ok(None));
        assert_eq!(bound("1", Kind::Bound(1)), Ok(Some(Duration::from_secs(1))));
        assert!(bound("0", Kind::Bound(1)).is_err());
    }

    #[test]
    fn named_values_get_their_types() {
        let text = r#"a=1; b=1.5;c=true;d=[1, 2];e=text; f="1;2" ;g=;h=nan"#;
        let values: Vec<_> = named_values(text).unwrap().into_iter().map(|value| value.value).collect();
        let string = |text: &str| Value::String(text.to_owned());
        let expected = [
            Value::Int64(1),
            Value::Float(1.5),
            Value::Bool(true),
            Value::Int64List(vec![1, 2]),
            string("text"),
            string("1;2"),
            string(""),
            string("nan"),
        ];
        assert_eq!(values, expected);
        assert_eq!(named_values("  ;"), Ok(vec![]));
        for text in ["a", "=1", "a=1;a=2", "a=\"1"] {
            assert!(named_values(text).is_err(), "{text}");
        }
    }
}
