//! Options about C-states, as values. What they mean for a CPU is decided in `cstate::select`.

use super::number;
use crate::cstate::EntryMethod;
use crate::cstate::select::{EditFault, Registers};
use crate::units::Micros;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// `mwait-idle.table=` takes at most this many characters.
const MAX_TABLE_CHARS: usize = 256;
/// So many further fields of an edit are ignored.
const MAX_SURPLUS_FIELDS: usize = 3;
/// States and overrides that one option may name.
const MAX_ITEMS: usize = 32;

/// `max_cstate=`: the deepest state that is used.
///
/// The number is that of the hardware (MWAIT hint bits 7:4, plus 1), or of ACPI: C1 and C1E are 1, hint 0x20 is 3 whatever its
/// name. 0 leaves HLT only. As Xen has it, and not a list index as Linux has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaxCState {
    /// The largest class.
    pub class: u8,
    /// The largest sub-state of that class; shallower classes are not limited by it.
    pub substate: Option<u8>,
}

impl MaxCState {
    /// Reads `N` or `N,SUB`.
    pub(crate) fn parse(value: &str) -> Result<Self, String> {
        let (class, substate) = match value.split_once(',') {
            Some((class, substate)) => (class, Some(small(substate, 15)?)),
            None => (value, None),
        };
        Ok(Self {
            class: small(class, 15)?,
            substate,
        })
    }

    /// Does it rule out a state of this class, entered in this way?
    ///
    /// As Xen has it: 0 leaves HLT.
    pub fn excludes(&self, class: u32, method: EntryMethod) -> bool {
        if class > u32::from(self.class) {
            let plain_halt = method == EntryMethod::Halt && class <= 1;
            return !(plain_halt && self.class == 0);
        }
        match (self.substate, method) {
            (Some(sub), EntryMethod::Mwait { hint, .. }) => {
                class == u32::from(self.class) && hint.substate() > u32::from(sub)
            }
            _ => false,
        }
    }
}

/// `states_off=`: states that are off until somebody switches them on.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StatesOff {
    /// By index: bit 0 is POLL, bit 1 the next usable state.
    pub mask: u32,
    /// By name.
    pub names: Vec<String>,
}

/// `irq-enable-early=`: whether C1 takes interrupts inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum EarlyIrq {
    /// Where the CPU's table says that it pays.
    #[default]
    Auto,
    /// Never.
    Off,
    /// In every state that does not rule it out. The TSC must still be nonstop.
    Force,
}

/// One edit of `mwait-idle.table=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEdit {
    /// The state.
    pub name: String,
    /// Its exit latency, if changed.
    pub latency: Option<Micros>,
    /// Its target residency, if changed.
    pub residency: Option<Micros>,
}

/// A register of CPUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpuidRegister {
    /// EAX.
    Eax,
    /// EBX.
    Ebx,
    /// ECX.
    Ecx,
    /// EDX.
    Edx,
}

/// `cpuid=`: what a CPUID leaf is taken to say. Testing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CpuidOverride {
    /// The leaf.
    pub leaf: u32,
    /// The register.
    pub register: CpuidRegister,
    /// What it is taken to hold.
    pub value: u32,
}

/// The options about C-states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CStateOptions {
    /// `cpuidle=`: off leaves HLT only.
    pub cpuidle: bool,
    /// `mwait-idle=`: off ignores the tables of CPU models.
    pub mwait_idle: bool,
    /// `mwait-idle.table=`.
    pub edits: Vec<TableEdit>,
    /// `max_cstate=`.
    pub max_cstate: Option<MaxCState>,
    /// `states_off=`.
    pub states_off: StatesOff,
    /// `idle_latency_factor=`: target residency of the firmware's states, in latencies. `None`: what suits them.
    pub latency_factor: Option<u32>,
    /// `irq-enable-early=`.
    pub early_irq: EarlyIrq,
    /// `force-mwait`: use MWAIT where the self-test did not see it work, but no exception either.
    pub force_mwait: bool,
    /// `preferred-c1e=`: of C1 and C1E, where a CPU can have one. `None`: C1E.
    pub preferred_c1e: Option<bool>,
    /// `tsc=unstable`: do not believe that the TSC counts on in every C-state.
    pub tsc_unstable: bool,
    /// `cpuid=`.
    pub cpuid: Vec<CpuidOverride>,
    /// `acpi_cst=`: off ignores `_CST`.
    pub acpi_cst: bool,
}

impl Default for CStateOptions {
    fn default() -> Self {
        Self {
            cpuidle: true,
            mwait_idle: true,
            edits: Vec::new(),
            max_cstate: None,
            states_off: StatesOff::default(),
            latency_factor: None,
            early_irq: EarlyIrq::default(),
            force_mwait: false,
            preferred_c1e: None,
            tsc_unstable: false,
            cpuid: Vec::new(),
            acpi_cst: true,
        }
    }
}

impl CStateOptions {
    /// What `cpuid=` makes of a leaf that the CPU answered.
    pub fn override_leaf(&self, leaf: u32, mut said: Registers) -> Registers {
        for one in self.cpuid.iter().filter(|one| one.leaf == leaf) {
            match one.register {
                CpuidRegister::Eax => said.eax = one.value,
                CpuidRegister::Ebx => said.ebx = one.value,
                CpuidRegister::Ecx => said.ecx = one.value,
                CpuidRegister::Edx => said.edx = one.value,
            }
        }
        said
    }

    /// Overrides of leaves that were not among those `asked` for: they change nothing.
    pub fn idle_overrides<'a>(
        &'a self,
        asked: &'a [u32],
    ) -> impl Iterator<Item = &'a CpuidOverride> + 'a {
        self.cpuid
            .iter()
            .filter(move |one| !asked.contains(&one.leaf))
    }

    pub(super) fn set_max_cstate(&mut self, value: &str) -> Result<(), String> {
        self.max_cstate = Some(MaxCState::parse(value)?);
        Ok(())
    }

    pub(super) fn set_states_off(&mut self, value: &str) -> Result<(), String> {
        let mut off = StatesOff::default();
        for item in items(value)? {
            if item.starts_with(|c: char| c.is_ascii_digit()) {
                off.mask |= u32::try_from(number(item, 0..=0xFFFF_FFFF)?).unwrap_or(0);
            } else {
                off.names.push(state_name(item)?);
            }
        }
        self.states_off = off;
        Ok(())
    }

    /// The edits that make sense are taken even if others do not; those are in the error.
    pub(super) fn set_table(&mut self, value: &str) -> Result<(), String> {
        if value.chars().count() > MAX_TABLE_CHARS {
            return Err(format!("longer than {MAX_TABLE_CHARS} characters"));
        }
        let mut faults: Vec<String> = Vec::new();
        let mut edits = Vec::new();
        for item in items(value)? {
            match edit(item) {
                Ok((edit, ignored)) => {
                    edits.push(edit);
                    if let Some(ignored) = ignored {
                        let item = item.escape_debug();
                        let ignored = ignored.escape_debug();
                        faults.push(format!("`{item}`: `{ignored}` is ignored"));
                    }
                }
                Err(why) => faults.push(format!("`{}`: {why}", item.escape_debug())),
            }
        }
        self.edits = edits;
        match faults.as_slice() {
            [] => Ok(()),
            _ if self.edits.is_empty() => Err(faults.join("; ")),
            _ => Err(format!("{}; what is not named stands", faults.join("; "))),
        }
    }

    pub(super) fn set_tsc(&mut self, value: &str) -> Result<(), String> {
        if value != "unstable" {
            return Err("not one of the choices".to_string());
        }
        self.tsc_unstable = true;
        Ok(())
    }

    pub(super) fn add_cpuid(&mut self, value: &str) -> Result<(), String> {
        let mut added = Vec::new();
        for item in items(value)? {
            added.push(cpuid(item)?);
        }
        if self.cpuid.len() + added.len() > MAX_ITEMS {
            return Err(format!("more than {MAX_ITEMS} of them"));
        }
        self.cpuid.append(&mut added);
        Ok(())
    }
}

fn small(text: &str, max: u8) -> Result<u8, String> {
    let value = number(text, 0..=u64::from(max))?;
    u8::try_from(value).map_err(|_| "too large".to_string())
}

/// The parts between commas.
fn items(value: &str) -> Result<Vec<&str>, String> {
    let items: Vec<&str> = value.split(',').collect();
    if items.len() > MAX_ITEMS {
        return Err(format!("more than {MAX_ITEMS} of them"));
    }
    Ok(items)
}

fn state_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.is_empty() {
        return Err("a state has no name".to_string());
    }
    if !text.chars().all(plain) || text.len() > 16 {
        return Err("not the name of a state".to_string());
    }
    Ok(text.to_string())
}

/// `NAME:LATENCY:RESIDENCY`; an empty figure is left as it is. What is behind them is for other hypervisors, and given back.
fn edit(item: &str) -> Result<(TableEdit, Option<&str>), String> {
    let mut fields = item.splitn(4, ':');
    let (Some(name), Some(latency), Some(residency)) =
        (fields.next(), fields.next(), fields.next())
    else {
        return Err("expected NAME:LATENCY:RESIDENCY".to_string());
    };
    let surplus = fields.next();
    if surplus.is_some_and(|surplus| surplus.split(':').count() > MAX_SURPLUS_FIELDS) {
        return Err("too many fields".to_string());
    }
    let figure = |text: &str, what: &str| -> Result<Option<Micros>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        match number(text, 0..=u64::MAX) {
            Ok(value) => Ok(Some(Micros::new(value))),
            Err(why) => Err(format!("{what}: {why}")),
        }
    };
    let edit = TableEdit {
        name: state_name(name)?,
        latency: figure(latency, "latency")?,
        residency: figure(residency, "residency")?,
    };
    EditFault::of_figures(edit.latency, edit.residency).map_err(|why| why.to_string())?;
    Ok((edit, surplus))
}

/// `LEAF:REG=VALUE`.
fn cpuid(item: &str) -> Result<CpuidOverride, String> {
    let (leaf, rest) = item.split_once(':').ok_or("expected LEAF:REG=VALUE")?;
    let (register, value) = rest.split_once('=').ok_or("expected LEAF:REG=VALUE")?;
    let register = match register {
        "eax" => CpuidRegister::Eax,
        "ebx" => CpuidRegister::Ebx,
        "ecx" => CpuidRegister::Ecx,
        "edx" => CpuidRegister::Edx,
        _ => return Err("expected one of the registers eax, ebx, ecx, edx".to_string()),
    };
    let word = |text: &str| -> Result<u32, String> {
        let value = number(text, 0..=0xFFFF_FFFF)?;
        u32::try_from(value).map_err(|_| "too large".to_string())
    };
    Ok(CpuidOverride {
        leaf: word(leaf)?,
        register,
        value: word(value)?,
    })
}
