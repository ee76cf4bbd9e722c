//! The fuzz targets' checks, on texts that are mutated at random with fixed seeds: every run is the same.
//!
//! `LULL_MUTATIONS` says how many for each target (default 3000).
#![cfg(not(loom))]
#![expect(clippy::expect_used, reason = "a test")]

#[path = "../fuzz/checks.rs"]
mod checks;

use lull_core::command::COMMANDS;
use lull_core::options::OPTIONS;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Changes a text in one of the ways in which fuzzers do.
fn mutate(text: &mut Vec<u8>, words: &[String], random: &mut Random) {
    let at = random.below(text.len() + 1);
    match random.below(7) {
        0 if !text.is_empty() => {
            let at = at.min(text.len() - 1);
            text[at] = random.next() as u8;
        }
        1 if !text.is_empty() => {
            let at = at.min(text.len() - 1);
            text[at] ^= 1 << random.below(8);
        }
        2 => {
            text.truncate(at);
        }
        3 => {
            let end = (at + random.below(8)).min(text.len());
            text.drain(at..end);
        }
        4 => {
            let end = (at + random.below(16)).min(text.len());
            let copy = text[at..end].to_vec();
            let to = random.below(text.len() + 1);
            text.splice(to..to, copy);
        }
        5 => {
            let number = match random.below(4) {
                0 => String::from("18446744073709551615"),
                1 => String::from("-1"),
                2 => format!("0x{:x}", random.next()),
                _ => format!("{}", random.below(300)),
            };
            text.splice(at..at, number.into_bytes());
        }
        _ => {
            let word = random.pick(words).clone();
            text.splice(at..at, word.into_bytes());
        }
    }
    text.truncate(4096);
}

fn run(seed: u64, corpus: &[&str], words: &[&str], check: impl Fn(&[u8])) {
    let count = std::env::var("LULL_MUTATIONS").map_or(3000, |count| {
        count.parse().expect("LULL_MUTATIONS is a number")
    });
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let mut random = Random(seed);
    let mut texts: Vec<Vec<u8>> = corpus.iter().map(|text| text.as_bytes().to_vec()).collect();
    for text in &texts {
        check(text);
    }
    for _ in 0..count {
        let index = random.below(texts.len());
        let mut text = texts[index].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut text, &words, &mut random);
        }
        check(&text);
        // Now and then a mutant is what the next ones are made of.
        if random.below(8) == 0 && texts.len() < 200 {
            texts.push(text);
        } else if random.below(64) == 0 {
            let place = corpus.len() + random.below(texts.len() - corpus.len());
            if let Some(slot) = texts.get_mut(place) {
                *slot = text;
            }
        }
    }
}

const TOKENS: [&str; 12] = [
    "=", ",", ":", "-", " ", "\n", "\"", "\\", "#", "\u{202e}", "\0", "\x1b[2J",
];

#[test]
fn options() {
    let names: Vec<String> = OPTIONS
        .iter()
        .map(|option| format!(" {}=", option.name))
        .collect();
    let mut words: Vec<&str> = names.iter().map(String::as_str).collect();
    words.extend(TOKENS);
    let corpus = [
        "loglvl=debug idle=hlt governor=menu for=5 keep maxcpus=4 latency=20:1-3",
        "mwait-idle.table=C1:2:2,C6:100:300 max_cstate=3,1 states_off=C6,4 preferred-c1e=off",
        "cpuid=0x5:edx=0x2020,0x80000007:edx=0 tsc=unstable force-mwait irq-enable-early=force",
    ];
    run(1, &corpus, &words, checks::options);
}

#[test]
fn guests() {
    let mut words = vec![
        "kernel=",
        "vcpus=",
        "mem=",
        "weight=",
        "pin=",
        "latency=",
        "cmdline=\"",
        "64M",
        "all",
    ];
    words.extend(TOKENS);
    let corpus = [
        "# guests\nidle-timer pin=1\nheavy kernel=busy vcpus=2 mem=64M weight=1024 pin=0-1 latency=50 cmdline=\"a=\\\"b\\\"\"\n",
        "busy,weight=512,pin=0,cmdline=\"for-ms=100\"",
    ];
    run(2, &corpus, &words, checks::guests);
}

#[test]
fn commands() {
    let mut words: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
    words.extend([
        "on",
        "off",
        "max",
        "unlimited",
        "none",
        "cpu=",
        "guest=",
        "vcpu=",
        "C6",
        "teo",
    ]);
    words.extend(TOKENS);
    words.extend(["\r", "\x7f", "\x15", "\x03"]);
    let corpus = [
        "cstate off C6 cpu=2\r",
        "cstate max 3,1 cpu=0,2-5\rgovernor teo\r",
        "latency 50 guest=d1 vcpu=0\rlatency none cpu=all\rshow\rhelp latency\r",
    ];
    run(3, &corpus, &words, checks::commands);
}

#[test]
fn edits() {
    let mut words = vec![
        "C1", "C1E", "C3", "C6", "C7s", "C10", ":::", "1:1", "5000", "100000",
    ];
    words.extend(TOKENS);
    let corpus = [
        "\x1aC1:1:1,C1E:10:20,C6:133:600",
        "\x18C6::700",
        "\x05C3:59:156,C6:80:300,C7:200:800:x:y:z",
    ];
    run(4, &corpus, &words, checks::edits);
}
