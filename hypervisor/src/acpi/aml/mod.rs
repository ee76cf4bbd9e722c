//! The firmware's own code: AML, interpreted to learn what `_CST` says.
//!
//! [`evaluate`] loads the DSDT and the SSDTs, tells each processor object that has a `_CST` what Lull can do
//! ([`capabilities`]), and evaluates its `_CST`. The `acpi` crate does the interpreting ([`lull_aml`]); it is neither free of panics nor
//! of endless loops, and the code that it interprets is whatever the firmware holds: on the machine all of this runs in
//! the cage. So what is learnt is told to a [`Report`], a piece at a time: there it is [`Findings`], which hold no memory of
//! the heap, so that what was learnt before the cage threw the rest out stays. `cargo xtask cstates --acpi` runs the same
//! in a process of its own.
//!
//! Not run: `_INI`, `_STA` and `\_SB._OSC`. Which processors there are, the MADT says.
//! ACPI specification 6.5, 6.2.12 (`_OSC`), 8.4.1 (`_PDC`), 8.4.2.1 (`_CST`).

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use arrayvec::{ArrayString, ArrayVec};
use lull_aml::aml::namespace::{AmlName, NamespaceLevelKind};
use lull_aml::aml::object::{Object, WrappedObject};
use lull_aml::aml::{AmlError, IntegerSize};
use lull_core::cstate::acpi::{Cst, CstEntry, CstFault, MAX_ENTRIES, Value};

use crate::cage::{Text, undisturbed};

pub mod capabilities;
pub mod handler;
pub mod rules;

#[cfg(test)]
mod assembler;
#[cfg(test)]
mod tests;

use capabilities::{Answer, Capabilities};
use handler::{Guarded, Machine};
use rules::{Refusals, Rules};

/// The path of an object; a longer one is cut.
pub type Path = ArrayString<64>;

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

    /// Does the operator Load occur in it? Other things may look like it.
    pub fn may_load(&self) -> bool {
        const LOAD: [u8; 2] = [0x5B, 0x20];
        self.bytes.windows(2).any(|window| window == LOAD)
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
    /// `_OSC` or `_PDC`, if it is not to be called: on one processor it had to be stopped, and others' is the same code.
    pub unasked: &'a [&'static str],
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
    let handler = Guarded::new(machine, rules, refusals);
    let revision = |table: &AmlTable| table.bytes.get(REVISION).copied();
    let dsdt = job.tables.iter().find(|table| table.name == "DSDT");
    let revision = dsdt.and_then(revision).unwrap_or(2);
    let Ok(interpreter) = lull_aml::interpreter(handler.clone(), revision) else {
        return;
    };
    let mut firmware = Firmware {
        interpreter,
        handler,
        integers: IntegerSize::from_revision(revision),
    };
    for (number, table) in job.tables.iter().enumerate() {
        if job.without.contains(&number) {
            continue;
        }
        report.now(Stage::Table(number));
        if let Some(code) = table.bytes.get(HEADER..).filter(|code| !code.is_empty())
            && let Err(why) = firmware.interpreter.load_table(code)
        {
            let why = format!(
                "the interpreter stopped: {}; what came before is used",
                Shown(&why)
            );
            report.remark(&table.name, &why);
        }
    }
    report.now(Stage::Search);
    for (path, processor, p_blk) in firmware.processors() {
        if !job.enabled.is_empty() && !job.enabled.contains(&processor) {
            continue;
        }
        if let Some(port) = p_blk {
            report.p_blk(port);
        }
        // `_OSC` and `_PDC` may load the table that has the `_CST`.
        let tellable = ["_OSC", "_PDC"]
            .iter()
            .any(|name| firmware.has(&path, name));
        if report.knows(&path) || !(tellable || firmware.has(&path, "_CST")) {
            continue;
        }
        let told = firmware.tell((&path, processor), job, report);
        if firmware.has(&path, "_CST") {
            report.now(Stage::Processor(cut(&path), processor, "_CST"));
            let value = firmware
                .invoke(&path, "_CST", Vec::new())
                .map(|value| firmware.plain(&value, 0))
                .map_err(|why| failure(&why));
            firmware.remark_tables(&path, report);
            let cst = value.as_ref().map_err(String::as_str);
            report.found(&path, processor, told, cst);
        }
    }
}

/// Length of a P_BLK that holds LVL2 and LVL3. ACPI specification 6.5, 4.8.4.2.
pub const P_BLK_LENGTH: u16 = 6;

/// Where a table's header has its revision.
const REVISION: usize = 8;

/// Deeper than this no `_CST` is; what lies deeper is nothing.
const DEPTH: usize = 6;

/// The interpreter with the tables that are loaded.
struct Firmware<M: Machine> {
    interpreter: lull_aml::aml::Interpreter<Guarded<M>>,
    handler: Guarded<M>,
    integers: IntegerSize,
}

impl<M: Machine> Firmware<M> {
    fn get(&self, path: &str, name: &str) -> Option<WrappedObject> {
        let name = child(path, name).ok()?;
        self.interpreter.namespace.lock().get(name).ok()
    }

    fn has(&self, path: &str, name: &str) -> bool {
        self.get(path, name).is_some()
    }

    /// Every processor object: its path, its number, its P_BLK.
    fn processors(&mut self) -> Vec<(String, u32, Option<u16>)> {
        let mut objects = Vec::new();
        let mut namespace = self.interpreter.namespace.lock();
        // The closure never fails, so nothing is cut short.
        let _always = namespace.traverse(|path, level| {
            let kind = level.kind;
            if kind == NamespaceLevelKind::Processor || kind == NamespaceLevelKind::Device {
                objects.push(path.clone());
            }
            Ok(true)
        });
        let found = objects.into_iter().filter_map(|name| {
            let object = namespace.get(name.clone()).ok()?;
            Some((name.as_string(), object))
        });
        let found: Vec<_> = found.collect();
        drop(namespace);
        found
            .into_iter()
            .filter_map(|(path, object)| match *object {
                Object::Processor {
                    proc_id,
                    pblk_address,
                    pblk_length,
                } => {
                    let p_blk = u16::try_from(pblk_address)
                        .ok()
                        .filter(|port| *port != 0 && u16::from(pblk_length) >= P_BLK_LENGTH);
                    Some((path, proc_id.into(), p_blk))
                }
                Object::Device => {
                    let id = self.get(&path, "_HID")?;
                    if id.as_string().ok()? != "ACPI0007" {
                        return None;
                    }
                    let uid = self.get(&path, "_UID")?.as_integer().ok()?;
                    Some((path, u32::try_from(uid).ok()?, None))
                }
                _ => None,
            })
            .collect()
    }

    /// `_OSC`, or `_PDC` where that is not there or refuses.
    fn tell(
        &self,
        (path, processor): (&str, u32),
        job: &Job<'_>,
        report: &mut impl Report,
    ) -> Told {
        let capabilities = job.capabilities;
        let asks = |name: &str| !job.unasked.contains(&name) && self.has(path, name);
        let mut told = Told::default();
        if asks("_OSC") {
            report.now(Stage::Processor(cut(path), processor, "_OSC"));
            let arguments = vec![
                buffer(&capabilities::OSC_UUID),
                Object::Integer(capabilities::OSC_REVISION).wrap(),
                Object::Integer(2).wrap(),
                buffer(&capabilities.for_osc()),
            ];
            let name = format!("{path}._OSC");
            match self.invoke(path, "_OSC", arguments) {
                Ok(value) => match self.plain(&value, 0) {
                    Value::Buffer(answer) => {
                        let answer = Answer::from_bytes(&answer);
                        told.osc = Some(answer);
                        if !answer.accepted() {
                            report.remark(&name, &answer);
                        }
                    }
                    _ => {
                        let why = format!("it returned {:?}, expected a buffer", value.typ());
                        report.remark(&name, &why);
                    }
                },
                Err(why) => report.remark(&name, &failure(&why)),
            }
            self.remark_tables(path, report);
            if told.osc.is_some_and(|answer| answer.accepted()) {
                return told;
            }
        }
        if asks("_PDC") {
            report.now(Stage::Processor(cut(path), processor, "_PDC"));
            let arguments = vec![buffer(&capabilities.for_pdc())];
            match self.invoke(path, "_PDC", arguments) {
                Ok(_) => told.pdc = true,
                Err(why) => report.remark(&format!("{path}._PDC"), &failure(&why)),
            }
            self.remark_tables(path, report);
        }
        told
    }

    /// Tables that the code wanted to load and that could not be.
    fn remark_tables(&self, path: &str, report: &mut impl Report) {
        for (object, why) in self.handler.take_tables_not_loaded() {
            let why = format!("the table at {object} is not loaded: {}", Shown(&why));
            report.remark(path, &why);
        }
    }

    fn invoke(
        &self,
        path: &str,
        name: &str,
        arguments: Vec<WrappedObject>,
    ) -> Result<WrappedObject, AmlError> {
        self.interpreter.evaluate(child(path, name)?, arguments)
    }

    /// Free of the interpreter. Fields of buffers are read and names looked up, as AML does wherever a value is wanted.
    fn plain(&self, value: &WrappedObject, depth: usize) -> Value {
        if depth > DEPTH {
            return Value::Other;
        }
        match **value {
            Object::Integer(value) => Value::Integer(value),
            Object::Buffer(ref bytes) => Value::Buffer(bytes.clone()),
            Object::Package(ref elements) => Value::Package(
                elements
                    .iter()
                    .map(|element| self.plain(element, depth + 1))
                    .collect(),
            ),
            Object::Reference { ref inner, .. } => self.plain(inner, depth + 1),
            Object::BufferField { .. } => value
                .read_buffer_field(self.integers)
                .map_or(Value::Other, |read| self.plain(&read.wrap(), depth + 1)),
            Object::NamePath {
                ref name,
                ref scope,
            } => {
                let found = self.interpreter.namespace.lock().search(name, scope);
                found.map_or(Value::Other, |(_, object)| self.plain(&object, depth + 1))
            }
            _ => Value::Other,
        }
    }
}

fn child(path: &str, name: &str) -> Result<AmlName, AmlError> {
    format!("{path}.{name}").parse()
}

fn buffer(bytes: &[u8]) -> WrappedObject {
    Object::Buffer(bytes.to_vec()).wrap()
}

fn failure(why: &AmlError) -> String {
    format!("the interpreter gave up: {}", Shown(why))
}

/// An error of the interpreter, with its names as ACPI writes them.
struct Shown<'a>(&'a AmlError);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            AmlError::ObjectDoesNotExist(name) | AmlError::LevelDoesNotExist(name) => {
                write!(f, "there is no {}", name.as_string())
            }
            AmlError::NameCollision(name) => write!(f, "{} is there twice", name.as_string()),
            AmlError::InvalidNormalizedName(name) => {
                write!(f, "{} is no name", name.as_string())
            }
            AmlError::MethodStackExceeded => f.write_str("methods call each other without end"),
            AmlError::HostError(why) => f.write_str(why),
            // Behind this stands a path of the machine that built the image.
            AmlError::InternalError(why) => f.write_str(why.split(", in ").next().unwrap_or(why)),
            other => write!(f, "{other:?}"),
        }
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
