//! One model, with all its variants, and what came of it.

use super::explore;
use lull_core::sync::watched;
use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much is explored, and by which checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// By loom, all that the memory model allows: executions in which no more than this many threads are interrupted where they
    /// could have gone on.
    Preemptions(usize),
    /// By the explorer: all states of a sequentially consistent memory.
    States,
}

/// What was explored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explored {
    /// Executions.
    pub executions: u64,
    /// Different states, if the checker knows them.
    pub states: u64,
}

/// What every message of a broken property begins with.
const PROPERTY: &str = "PROPERTY ";

/// Fails with a named property.
macro_rules! property {
    ($holds:expr, $name:literal, $($detail:tt)*) => {
        assert!($holds, "PROPERTY {}: {}", $name, format_args!($($detail)*))
    };
}
pub(super) use property;

type Body = Arc<dyn Fn() + Send + Sync>;

/// One model.
pub struct Check {
    pub name: String,
    /// Different settings of the same.
    variants: Vec<Body>,
    /// Each is tried again with an NMI at every point where one can come.
    nmi_everywhere: bool,
}

/// How a model failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The property that was broken; `None`: something else went wrong.
    pub property: Option<String>,
    pub message: String,
    pub executions: u64,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (execution {})", self.message, self.executions)
    }
}

impl Check {
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            variants: Vec::new(),
            nmi_everywhere: false,
        }
    }

    pub fn variant(mut self, body: impl Fn() + Send + Sync + 'static) -> Self {
        self.variants.push(Arc::new(body));
        self
    }

    pub fn nmi_everywhere(mut self) -> Self {
        self.nmi_everywhere = true;
        self
    }

    /// Explores all variants.
    pub fn run(&self, bound: Bound) -> Result<Explored, Failure> {
        let executions = Arc::new(AtomicU64::new(0));
        let mut states = 0;
        for variant in &self.variants {
            let mut nmi_at = None;
            loop {
                nmi::come_at(nmi_at);
                states += explore(variant.clone(), bound, &executions)?;
                if !self.nmi_everywhere || (nmi_at.is_some() && !nmi::came()) {
                    break;
                }
                nmi_at = Some(nmi_at.map_or(0, |at| at + 1));
            }
            nmi::come_at(None);
        }
        Ok(Explored {
            executions: executions.load(Ordering::Relaxed),
            states,
        })
    }
}

/// Explores one variant, with the NMI where it is. Gives the number of states.
fn explore(body: Body, bound: Bound, executions: &Arc<AtomicU64>) -> Result<u64, Failure> {
    let count = executions.clone();
    let begin = move || {
        count.fetch_add(1, Ordering::Relaxed);
        watched::set_hook(None);
        nmi::begin();
    };
    let explored = panic::catch_unwind(AssertUnwindSafe(|| match bound {
        Bound::States => explore::explore(move || body(), begin),
        Bound::Preemptions(bound) => {
            let mut builder = loom::model::Builder::new();
            builder.max_branches = 20_000;
            builder.preemption_bound = Some(bound);
            builder.check(move || {
                begin();
                body();
            });
            0
        }
    }));
    watched::set_hook(None);
    explore::leave();
    explored.map_err(|why| {
        nmi::come_at(None);
        let message = text(why.as_ref());
        let property = message
            .strip_prefix(PROPERTY)
            .and_then(|rest| rest.split(':').next())
            .map(str::to_owned);
        Failure {
            property,
            message,
            executions: executions.load(Ordering::Relaxed),
        }
    })
}

fn text(why: &(dyn Any + Send)) -> String {
    why.downcast_ref::<String>()
        .cloned()
        .or_else(|| why.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}

/// What a failed model says is in its result.
pub fn keep_panics_quiet() {
    panic::set_hook(Box::new(|_| {}));
}

/// When the one NMI comes: at which of the points of the CPU that it goes to.
pub mod nmi {
    use super::{Cell, watched};
    use crate::model::rt;
    use std::rc::Rc;

    std::thread_local! {
        static AT: Cell<Option<u64>> = const { Cell::new(None) };
        static POINT: Cell<u64> = const { Cell::new(0) };
        static CAME: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn come_at(at: Option<u64>) {
        AT.set(at);
        CAME.set(false);
    }

    /// Did it come in any execution since [`come_at`]?
    pub(super) fn came() -> bool {
        CAME.get()
    }

    pub(super) fn begin() {
        POINT.set(0);
    }

    /// The thread that calls this is the CPU that the NMI goes to, and this is its handler.
    pub fn goes_here(handler: impl Fn() + 'static) {
        let victim = rt::current();
        watched::set_hook(Some(Rc::new(move || {
            if rt::current() != victim {
                return;
            }
            let point = POINT.get();
            POINT.set(point + 1);
            if AT.get() == Some(point) {
                CAME.set(true);
                handler();
            }
        })));
    }

    /// It comes no more.
    pub fn goes_nowhere() {
        watched::set_hook(None);
    }

    /// Has it come in this execution already?
    pub fn is_over() -> bool {
        AT.get().is_some_and(|at| POINT.get() > at)
    }
}
