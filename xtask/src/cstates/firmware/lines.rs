//! What the process that runs the firmware's code is told, and what it answers: JSON, an object a line.

use std::fmt;

use lull::acpi::aml::capabilities::Answer;
use lull::acpi::aml::{Report, Stage, Told};
use lull_core::cstate::acpi::Value;
use serde::{Deserialize, Serialize};

/// What to run.
#[derive(Serialize, Deserialize)]
pub struct Task {
    /// Names and bytes of the tables.
    pub tables: Vec<(String, Vec<u8>)>,
    /// Those that are left out.
    pub without: Vec<usize>,
    /// Methods that are not called.
    pub unasked: Vec<String>,
    /// The processors that count; none: all.
    pub enabled: Vec<u32>,
    /// The capability dword.
    pub capabilities: u32,
    /// Processor objects that are known already.
    pub known: Vec<String>,
}

/// One thing that was learnt.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// A table is loaded.
    Table(usize),
    /// Processor objects are looked for.
    Search,
    /// A method of a processor object is evaluated.
    Method {
        path: String,
        processor: u32,
        method: String,
    },
    /// Something failed.
    Remark { name: String, why: String },
    /// A P_BLK.
    PBlk(u16),
    /// A `_CST`.
    Found {
        path: String,
        processor: u32,
        /// Status and granted dword of `_OSC`.
        osc: Option<(Option<u32>, Option<u32>)>,
        pdc: bool,
        cst: Result<Tree, String>,
    },
    /// Registers that are not here were wanted.
    Missed(String),
    /// Accesses were refused.
    Refused(String),
    /// It panicked.
    Panic(String),
}

/// A value that AML gave back.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Tree {
    Integer(u64),
    Buffer(Vec<u8>),
    Package(Vec<Tree>),
    Other,
}

impl From<&Value> for Tree {
    fn from(value: &Value) -> Self {
        match value {
            Value::Integer(value) => Self::Integer(*value),
            Value::Buffer(bytes) => Self::Buffer(bytes.clone()),
            Value::Package(elements) => Self::Package(elements.iter().map(Self::from).collect()),
            Value::Other => Self::Other,
        }
    }
}

impl From<&Tree> for Value {
    fn from(tree: &Tree) -> Self {
        match tree {
            Tree::Integer(value) => Self::Integer(*value),
            Tree::Buffer(bytes) => Self::Buffer(bytes.clone()),
            Tree::Package(elements) => Self::Package(elements.iter().map(Self::from).collect()),
            Tree::Other => Self::Other,
        }
    }
}

/// Writes what is reported.
pub struct Writer<W> {
    /// Processor objects that are known already.
    pub known: Vec<String>,
    /// Where it is written, a line at a time.
    pub write: W,
}

impl<W: FnMut(&Line)> Report for Writer<W> {
    fn now(&mut self, stage: Stage) {
        (self.write)(&match stage {
            Stage::Table(number) => Line::Table(number),
            Stage::Search => Line::Search,
            Stage::Processor(path, processor, method) => Line::Method {
                path: path.to_string(),
                processor,
                method: method.to_owned(),
            },
        });
    }

    fn remark(&mut self, name: &str, why: &dyn fmt::Display) {
        let (name, why) = (name.to_owned(), why.to_string());
        (self.write)(&Line::Remark { name, why });
    }

    fn p_blk(&mut self, port: u16) {
        (self.write)(&Line::PBlk(port));
    }

    fn knows(&self, path: &str) -> bool {
        self.known.iter().any(|known| known == path)
    }

    fn found(&mut self, path: &str, processor: u32, told: Told, cst: Result<&Value, &str>) {
        self.known.push(path.to_owned());
        (self.write)(&Line::Found {
            path: path.to_owned(),
            processor,
            osc: told.osc.map(|answer| (answer.status, answer.granted)),
            pdc: told.pdc,
            cst: cst.map(Tree::from).map_err(str::to_owned),
        });
    }
}

/// The methods of a processor object that are called.
pub fn method(name: &str) -> Option<&'static str> {
    ["_OSC", "_PDC", "_CST"]
        .into_iter()
        .find(|known| *known == name)
}

/// Reports what was written.
pub fn report(line: &Line, to: &mut impl Report) {
    match line {
        Line::Table(number) => to.now(Stage::Table(*number)),
        Line::Search => to.now(Stage::Search),
        Line::Method {
            path,
            processor,
            method,
        } => {
            let method = self::method(method);
            let mut short = lull::acpi::aml::Path::new();
            path.chars().for_each(|c| {
                let _full = short.try_push(c);
            });
            to.now(Stage::Processor(short, *processor, method.unwrap_or("?")));
        }
        Line::Remark { name, why } => to.remark(name, why),
        Line::PBlk(port) => to.p_blk(*port),
        Line::Found {
            path,
            processor,
            osc,
            pdc,
            cst,
        } => {
            let told = Told {
                osc: osc.map(|(status, granted)| Answer { status, granted }),
                pdc: *pdc,
            };
            let value = cst.as_ref().map(Value::from);
            to.found(
                path,
                *processor,
                told,
                value.as_ref().map_err(|why| why.as_str()),
            );
        }
        Line::Missed(_) | Line::Refused(_) | Line::Panic(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull::acpi::aml::{Evaluated, Findings};

    #[test]
    fn what_is_written_is_reported_again() {
        let lines = [
            Line::Table(3),
            Line::Remark {
                name: "SSDT 1".into(),
                why: "broken".into(),
            },
            Line::PBlk(0x1810),
            Line::Found {
                path: r"\_PR_.CPU0".into(),
                processor: 7,
                osc: Some((Some(4), None)),
                pdc: true,
                cst: Ok(Tree::Package(vec![Tree::Integer(0)])),
            },
            Line::Found {
                path: r"\_PR_.CPU1".into(),
                processor: 8,
                osc: None,
                pdc: false,
                cst: Err("gave up".into()),
            },
            Line::Method {
                path: r"\_PR_.CPU2".into(),
                processor: 9,
                method: "_OSC".into(),
            },
        ];
        let mut findings = Findings::with_room(4);
        for line in &lines {
            let text = serde_json::to_string(line).unwrap();
            let back: Line = serde_json::from_str(&text).unwrap();
            assert_eq!(&back, line);
            report(&back, &mut findings);
        }
        assert_eq!(findings.p_blk, Some(0x1810));
        assert_eq!(findings.remarks[0].1.as_str(), "broken");
        let [first, second] = findings.processors.as_slice() else {
            panic!("{findings:?}")
        };
        assert!(first.told.pdc && !first.told.osc.unwrap().accepted());
        assert!(matches!(first.cst, Evaluated::Refused(_)), "{first:?}");
        assert!(matches!(&second.cst, Evaluated::Failed(why) if why.as_str() == "gave up"));
        assert_eq!(findings.stage.to_string(), r"\_PR_.CPU2._OSC");
    }
}
