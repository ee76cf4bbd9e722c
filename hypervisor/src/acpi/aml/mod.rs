//! The firmware's own code: AML, interpreted to learn what `_CST` says.
//!
//! [`evaluate`] loads the DSDT and the SSDTs, tells each processor object that has a `_CST` what Lull can do
//! ([`capabilities`]), and evaluates its `_CST`. The `aml` crate does the interpreting; it is neither free of panics nor
//! of endless loops, and the code that it interprets is whatever the firmware holds: on the machine all of this runs in
//! the cage. So what is learnt is told to a [`Report`], a piece at a time: there it is [`Findings`], which hold no memory of
//! the heap, so that what was learnt before the cage threw the rest out stays. `cargo xtask cstates --acpi` runs the same
//! in a process of its own.
//!
//! Not run: `_INI`, `_STA` and `\_SB._OSC`. Which processors there are, the MADT says. The crate knows no `Load`, so
//! tables that AML would load are not seen, and lacks some operators; a method that needs one fails, and is named.
//! ACPI specification 6.5, 6.2.12 (`_OSC`), 8.4.1 (`_PDC`), 8.4.2.1 (`_CST`).

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use ::aml::value::{Args, MethodCode};
use ::aml::{AmlContext, AmlError, AmlName, AmlValue, DebugVerbosity, LevelType};
use arrayvec::{ArrayString, ArrayVec};
use lull_core::cstate::acpi::{Cst, CstEntry, CstFault, MAX_ENTRIES, Value};

use crate::cage::{Text, undisturbed};

pub mod capabilities;
pub mod fields;
pub mod handler;
pub mod rules;

#[cfg(test)]
mod assembler;
#[cfg(test)]
mod tests;

use capabilities::{Answer, Capabilities};
use fields::Fields;
use handler::{Guarded, Machine};
use rules::{Refusals, Rules};

/// The path of an object; a longer one is cut.
pub type Path = ArrayString<64>;

const NOOP: u8 = 0xA3;

/// Header that stands before the AML of a table. ACPI specification 6.5, 5.2.6.
const HEADER: usize = super::tables::HEADER;

/// A DSDT, SSDT or PSDT.
#[derive(Clone, PartialEq, Eq)]
pub struct AmlTable {
    /// Its signature, and its place among those of the same signature: `SSDT 2`.
    pub name: String,
    /// All of it, with the header. The checksum is right.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for AmlTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.name, self.bytes.len())
    }
}

impl AmlTable {
    /// Does the name segment occur in it? What is not named anywhere is not defined anywhere.
    pub fn mentions(&self, segment: &[u8; 4]) -> bool {
        self.bytes.windows(4).any(|window| window == segment)
    }
}

/// How a processor object was told what Lull can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// What `_OSC` answered, if there is one.
    pub osc: Option<Answer>,
    /// `_PDC` was evaluated. Only where `_OSC` did not do.
    pub pdc: bool,
}

/// Most faults of a `_CST` that are kept.
const MAX_FAULTS: usize = 16;

/// What `_CST` of a processor object came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would lie in the arena of the cage"
)]
pub enum Evaluated {
    /// Entries that make sense, and what is wrong with others, by their position from 1.
    List(
        ArrayVec<CstEntry, MAX_ENTRIES>,
        ArrayVec<(usize, CstFault), MAX_FAULTS>,
    ),
    /// Its frame is wrong.
    Refused(CstFault),
    /// The interpreter gave up.
    Failed(Text),
    /// It had to be stopped.
    Stopped(Text),
}

/// A processor object and its `_CST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The object's path.
    pub path: Path,
    /// ACPI's number of the processor: the same as in the MADT.
    pub processor: u32,
    /// What it was told before.
    pub told: Told,
    /// Its `_CST`.
    pub cst: Evaluated,
}

/// What the interpreter is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It loads the table of this number.
    Table(usize),
    /// It looks for processor objects.
    Search,
    /// It evaluates a method of this object, of the processor of this number.
    Processor(Path, u32, &'static str),
}

/// Why something failed; a longer one is cut.
pub type Remark = ArrayString<160>;

/// Most remarks that are kept.
const MAX_REMARKS: usize = 16;

/// All that has been learnt. Nothing in it lies in the heap but the list, which has its room from the start.
#[derive(Debug)]
pub struct Findings {
    /// A finding for each processor object that has a `_CST`.
    pub processors: Vec<Finding>,
    /// Methods and tables with which the interpreter failed, and why.
    pub remarks: ArrayVec<(Path, Remark), MAX_REMARKS>,
    /// The P_BLK of the first processor object that has one.
    pub p_blk: Option<u16>,
    /// What is being done now.
    pub stage: Stage,
}

impl Findings {
    /// Nothing yet, with room for so many processors.
    pub fn with_room(processors: usize) -> Self {
        Self {
            processors: Vec::with_capacity(processors),
            remarks: ArrayVec::new(),
            p_blk: None,
            stage: Stage::Search,
        }
    }
}

/// Who is told what is learnt, a piece at a time: the work may be thrown out at any moment.
pub trait Report {
    /// This is being done from now on.
    fn now(&mut self, stage: Stage);
    /// A method or table with which the interpreter failed, and why.
    fn remark(&mut self, name: &str, why: &dyn fmt::Display);
    /// A processor object has this P_BLK. The first counts.
    fn p_blk(&mut self, port: u16);
    /// Has this processor object been dealt with already?
    fn knows(&self, path: &str) -> bool;
    /// What `_CST` of a processor object gave back, or why it gave nothing.
    fn found(&mut self, path: &str, processor: u32, told: Told, cst: Result<&Value, &str>);
}

impl Report for Findings {
    fn now(&mut self, stage: Stage) {
        undisturbed(|| self.stage = stage);
    }

    fn remark(&mut self, name: &str, why: &dyn fmt::Display) {
        let (name, why) = (cut(name), shown(why));
        undisturbed(|| {
            // Firmware that fails more often than this has been named often enough.
            let _full = self.remarks.try_push((name, why));
        });
    }

    fn p_blk(&mut self, port: u16) {
        undisturbed(|| self.p_blk = self.p_blk.or(Some(port)));
    }

    fn knows(&self, path: &str) -> bool {
        self.processors.iter().any(|known| known.path == cut(path))
    }

    fn found(&mut self, path: &str, processor: u32, told: Told, cst: Result<&Value, &str>) {
        let finding = Finding {
            path: cut(path),
            processor,
            told,
            cst: match cst.map(Cst::parse) {
                Ok(Ok(cst)) => Evaluated::List(
                    cst.entries.into_iter().take(MAX_ENTRIES).collect(),
                    cst.faults.into_iter().take(MAX_FAULTS).collect(),
                ),
                Ok(Err(why)) => Evaluated::Refused(why),
                Err(why) => Evaluated::Failed(cut(why)),
            },
        };
        undisturbed(|| {
            if self.processors.len() < self.processors.capacity() {
                self.processors.push(finding);
            }
        });
    }
}

/// What to evaluate.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// DSDT first.
    pub tables: &'a [AmlTable],
    /// Tables that are left out, by number.
    pub without: &'a [usize],
    /// The processors of the MADT that are enabled. Empty: all that there are.
    pub enabled: &'a [u32],
    /// What Lull can do.
    pub capabilities: Capabilities,
}

/// The same text, as long as there is room for it.
fn cut<const N: usize>(text: &str) -> ArrayString<N> {
    let mut kept = ArrayString::new();
    for c in text.chars() {
        if kept.try_push(c).is_err() {
            break;
        }
    }
    kept
}

fn shown<const N: usize>(what: impl fmt::Display) -> ArrayString<N> {
    struct Cut<const N: usize>(ArrayString<N>);
    impl<const N: usize> Write for Cut<N> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for c in text.chars() {
                self.0.try_push(c).map_err(|_| fmt::Error)?;
            }
            Ok(())
        }
    }
    let mut kept = Cut(ArrayString::new());
    // An error means that it is full: the text is cut there.
    let _full = write!(kept, "{what}");
    kept.0
}

/// Loads the tables and evaluates `_CST` of every processor object that has one and that `report` does not know yet.
///
/// The firmware's code reaches `machine` as far as `rules` let it; what they refuse is counted. Whatever fails is
/// remarked, and the rest goes on. May panic, loop, and use up any stack and heap: see the module.
pub fn evaluate(
    machine: impl Machine,
    rules: Rules,
    refusals: &'static Refusals,
    job: &Job<'_>,
    report: &mut impl Report,
) {
    let fields = Fields::default();
    let handler = Box::new(Guarded {
        machine,
        fields: fields.clone(),
        rules,
        refusals,
    });
    let mut context = AmlContext::new(handler, DebugVerbosity::None);
    for (number, table) in job.tables.iter().enumerate() {
        if job.without.contains(&number) {
            continue;
        }
        report.now(Stage::Table(number));
        if let Some(code) = table.bytes.get(HEADER..).filter(|code| !code.is_empty())
            && let Err(why) = context.parse_table(&with_room_behind(code))
        {
            let why = format!(
                "the interpreter stopped: {}; what came before is used",
                Shown(&why)
            );
            report.remark(&table.name, &why);
        }
        fields::adopt(&mut context, &fields);
    }
    report.now(Stage::Search);
    end_with_noop(&mut context);
    for (path, processor, p_blk) in processors(&mut context) {
        if !job.enabled.is_empty() && !job.enabled.contains(&processor) {
            continue;
        }
        if let Some(port) = p_blk {
            report.p_blk(port);
        }
        if has(&context, &path, "_CST") && !report.knows(&path) {
            let told = tell(&mut context, (&path, processor), job.capabilities, report);
            report.now(Stage::Processor(cut(&path), processor, "_CST"));
            let value = invoke(&mut context, &path, "_CST", Vec::new())
                .map(|value| plain(&value, &context, 0))
                .map_err(|why| failure(&why));
            let cst = value.as_ref().map_err(String::as_str);
            report.found(&path, processor, told, cst);
        }
    }
}

/// The code, and behind it `If (Zero) { .. }` around bytes that are never looked at.
///
/// The interpreter takes the length of a field, in bits, for one of bytes that must follow in the table: a field or gap
/// that is longer than the rest of the table makes it stop. With this, regions may have 32 KiB.
fn with_room_behind(code: &[u8]) -> Vec<u8> {
    const ROOM: usize = 256 << 10;
    const IF: u8 = 0xA0;
    // The Noop is there since the interpreter fails at an `If` without `Else` that is the last thing of all.
    // A length of four bytes: two bits say that three follow, four bits are the lowest of it.
    let length = ROOM + 5;
    let head = [
        IF,
        0b11 << 6 | (length & 0xF) as u8,
        (length >> 4) as u8,
        (length >> 12) as u8,
        (length >> 20) as u8,
        0,
    ];
    let mut all = Vec::with_capacity(code.len() + head.len() + ROOM);
    all.extend_from_slice(code);
    all.extend_from_slice(&head);
    all.resize(code.len() + head.len() + ROOM, 0);
    all.push(NOOP);
    all
}

/// The name of every object that is not a mere level.
fn all_names(context: &mut AmlContext) -> Vec<AmlName> {
    let mut names = Vec::new();
    // The closure never fails, so nothing is cut short.
    let _always = context.namespace.traverse(|path, level| {
        let values = level.values.keys();
        names.extend(values.filter_map(|name| AmlName::from_name_seg(*name).resolve(path).ok()));
        Ok(true)
    });
    names
}

/// The interpreter fails at an `If` without `Else` that is the last thing of a method: each gets one thing more.
fn end_with_noop(context: &mut AmlContext) {
    for name in all_names(context) {
        if let Ok(AmlValue::Method {
            code: MethodCode::Aml(code),
            ..
        }) = context.namespace.get_by_path_mut(&name)
        {
            code.push(NOOP);
        }
    }
}

fn child(path: &str, name: &str) -> Result<AmlName, AmlError> {
    AmlName::from_str(&format!("{path}.{name}"))
}

fn has(context: &AmlContext, path: &str, name: &str) -> bool {
    child(path, name).is_ok_and(|name| context.namespace.get_handle(&name).is_ok())
}

/// Every processor object: its path, its number, its P_BLK.
fn processors(context: &mut AmlContext) -> Vec<(String, u32, Option<u16>)> {
    let mut objects = Vec::new();
    // The closure never fails, so nothing is cut short.
    let _always = context.namespace.traverse(|path, level| {
        if matches!(level.typ, LevelType::Processor | LevelType::Device) {
            objects.push(path.clone());
        }
        Ok(true)
    });
    objects
        .into_iter()
        .filter_map(|name| {
            let path = name.as_string();
            let object = context.namespace.get_by_path(&name).ok()?.clone();
            match object {
                AmlValue::Processor {
                    id,
                    pblk_address,
                    pblk_len,
                } => {
                    let p_blk = u16::try_from(pblk_address)
                        .ok()
                        .filter(|port| *port != 0 && pblk_len >= P_BLK_LENGTH);
                    Some((path, id.into(), p_blk))
                }
                AmlValue::Device => {
                    let id = context
                        .namespace
                        .get_by_path(&child(&path, "_HID").ok()?)
                        .ok()?;
                    if !matches!(id, AmlValue::String(id) if id == "ACPI0007") {
                        return None;
                    }
                    let uid = context
                        .namespace
                        .get_by_path(&child(&path, "_UID").ok()?)
                        .ok()?;
                    match uid {
                        AmlValue::Integer(uid) => Some((path, u32::try_from(*uid).ok()?, None)),
                        _ => None,
                    }
                }
                _ => None,
            }
        })
        .collect()
}

/// Length of a P_BLK that holds LVL2 and LVL3. ACPI specification 6.5, 4.8.4.2.
const P_BLK_LENGTH: u8 = 6;

/// `_OSC`, or `_PDC` where that is not there or refuses.
fn tell(
    context: &mut AmlContext,
    (path, processor): (&str, u32),
    capabilities: Capabilities,
    report: &mut impl Report,
) -> Told {
    let mut told = Told::default();
    if has(context, path, "_OSC") {
        report.now(Stage::Processor(cut(path), processor, "_OSC"));
        let arguments = vec![
            buffer(&capabilities::OSC_UUID),
            AmlValue::Integer(capabilities::OSC_REVISION),
            AmlValue::Integer(2),
            buffer(&capabilities.for_osc()),
        ];
        match invoke(context, path, "_OSC", arguments) {
            Ok(AmlValue::Buffer(answer)) => {
                let answer = Answer::from_bytes(&answer.lock());
                told.osc = Some(answer);
                if answer.accepted() {
                    return told;
                }
                report.remark(&format!("{path}._OSC"), &answer);
            }
            Ok(other) => {
                let why = format!("it returned {:?}, expected a buffer", other.type_of());
                report.remark(&format!("{path}._OSC"), &why);
            }
            Err(why) => report.remark(&format!("{path}._OSC"), &failure(&why)),
        }
    }
    if has(context, path, "_PDC") {
        report.now(Stage::Processor(cut(path), processor, "_PDC"));
        match invoke(context, path, "_PDC", vec![buffer(&capabilities.for_pdc())]) {
            Ok(_) => told.pdc = true,
            Err(why) => report.remark(&format!("{path}._PDC"), &failure(&why)),
        }
    }
    told
}

fn failure(why: &AmlError) -> String {
    format!("the interpreter gave up: {}", Shown(why))
}

/// An error of the interpreter, with its names as ACPI writes them.
struct Shown<'a>(&'a AmlError);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            AmlError::ValueDoesNotExist(name) | AmlError::LevelDoesNotExist(name) => {
                write!(f, "there is no {}", name.as_string())
            }
            AmlError::NameCollision(name) => write!(f, "{} is there twice", name.as_string()),
            AmlError::InvalidNormalizedName(name) => {
                write!(f, "{} is no name", name.as_string())
            }
            other => write!(f, "{other:?}"),
        }
    }
}

fn invoke(
    context: &mut AmlContext,
    path: &str,
    name: &str,
    arguments: Vec<AmlValue>,
) -> Result<AmlValue, AmlError> {
    context.invoke_method(&child(path, name)?, Args::from_list(arguments)?)
}

fn buffer(bytes: &[u8]) -> AmlValue {
    AmlValue::Buffer(alloc::sync::Arc::new(spinning_top::Spinlock::new(
        bytes.to_vec(),
    )))
}

/// Deeper than this no `_CST` is; what lies deeper is nothing.
const DEPTH: usize = 4;

/// Free of the interpreter. Fields are read, as AML does wherever a value is wanted.
fn plain(value: &AmlValue, context: &AmlContext, depth: usize) -> Value {
    match value {
        AmlValue::Integer(value) => Value::Integer(*value),
        AmlValue::Boolean(value) => Value::Integer(u64::from(*value)),
        AmlValue::Buffer(bytes) => Value::Buffer(bytes.lock().to_vec()),
        AmlValue::Field { .. } => value
            .read_field(context)
            .map_or(Value::Other, |read| plain_leaf(&read)),
        AmlValue::Package(elements) if depth < DEPTH => Value::Package(
            elements
                .iter()
                .map(|element| plain(element, context, depth + 1))
                .collect(),
        ),
        _ => Value::Other,
    }
}

fn plain_leaf(value: &AmlValue) -> Value {
    match value {
        AmlValue::Integer(value) => Value::Integer(*value),
        AmlValue::Buffer(bytes) => Value::Buffer(bytes.lock().to_vec()),
        _ => Value::Other,
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(number) => write!(f, "loading AML table {number}"),
            Self::Search => f.write_str("looking for processors"),
            Self::Processor(path, _, method) => write!(f, "{path}.{method}"),
        }
    }
}
