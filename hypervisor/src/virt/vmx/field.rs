//! The fields of a VMCS (SDM vol. 3, appendix B): encodings, from the `x86` crate.

use x86::vmx::vmcs;

/// Encoding of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Field(u32);

impl Field {
    /// For VMREAD and VMWRITE.
    #[cfg(any(target_os = "none", test))]
    pub const fn encoding(self) -> u32 {
        self.0
    }
}

macro_rules! fields {
    ($($area:ident { $($name:ident = $from:ident),+ $(,)? })+) => {
        impl Field {
            $($(
                #[doc = concat!("`", stringify!($from), "` of the ", stringify!($area), " fields.")]
                pub const $name: Self = Self(vmcs::$area::$from);
            )+)+
        }
    };
}

fields! {
    control {
        VPID = VPID,
        MSR_BITMAP = MSR_BITMAPS_ADDR_FULL,
        TSC_OFFSET = TSC_OFFSET_FULL,
        VIRTUAL_APIC = VIRT_APIC_ADDR_FULL,
        EPTP = EPTP_FULL,
        POSTED_VECTOR = POSTED_INTERRUPT_NOTIFICATION_VECTOR,
        POSTED_DESCRIPTOR = POSTED_INTERRUPT_DESC_ADDR_FULL,
        EOI_EXIT0 = EOI_EXIT0_FULL,
        EOI_EXIT1 = EOI_EXIT1_FULL,
        EOI_EXIT2 = EOI_EXIT2_FULL,
        EOI_EXIT3 = EOI_EXIT3_FULL,
        PIN = PINBASED_EXEC_CONTROLS,
        PRIMARY = PRIMARY_PROCBASED_EXEC_CONTROLS,
        SECONDARY = SECONDARY_PROCBASED_EXEC_CONTROLS,
        EXIT = VMEXIT_CONTROLS,
        ENTRY = VMENTRY_CONTROLS,
        EXCEPTIONS = EXCEPTION_BITMAP,
        PAGE_FAULT_MASK = PAGE_FAULT_ERR_CODE_MASK,
        PAGE_FAULT_MATCH = PAGE_FAULT_ERR_CODE_MATCH,
        CR3_TARGETS = CR3_TARGET_COUNT,
        EXIT_MSR_STORES = VMEXIT_MSR_STORE_COUNT,
        EXIT_MSR_LOADS = VMEXIT_MSR_LOAD_COUNT,
        ENTRY_MSR_LOADS = VMENTRY_MSR_LOAD_COUNT,
        INJECTION = VMENTRY_INTERRUPTION_INFO_FIELD,
        INJECTION_ERROR = VMENTRY_EXCEPTION_ERR_CODE,
        TPR_THRESHOLD = TPR_THRESHOLD,
        PLE_GAP = PLE_GAP,
        PLE_WINDOW = PLE_WINDOW,
        CR0_MASK = CR0_GUEST_HOST_MASK,
        CR4_MASK = CR4_GUEST_HOST_MASK,
        CR0_SHADOW = CR0_READ_SHADOW,
        CR4_SHADOW = CR4_READ_SHADOW,
    }
    guest {
        ES_SELECTOR = ES_SELECTOR,
        INTERRUPT_STATUS = INTERRUPT_STATUS,
        LINK_POINTER = LINK_PTR_FULL,
        DEBUGCTL = IA32_DEBUGCTL_FULL,
        PAT = IA32_PAT_FULL,
        EFER = IA32_EFER_FULL,
        ES_LIMIT = ES_LIMIT,
        GDTR_LIMIT = GDTR_LIMIT,
        IDTR_LIMIT = IDTR_LIMIT,
        ES_RIGHTS = ES_ACCESS_RIGHTS,
        INTERRUPTIBILITY = INTERRUPTIBILITY_STATE,
        ACTIVITY = ACTIVITY_STATE,
        SYSENTER_CS = IA32_SYSENTER_CS,
        PREEMPTION_TIMER = VMX_PREEMPTION_TIMER_VALUE,
        CR0 = CR0,
        CR3 = CR3,
        CR4 = CR4,
        ES_BASE = ES_BASE,
        GDTR_BASE = GDTR_BASE,
        IDTR_BASE = IDTR_BASE,
        DR7 = DR7,
        RSP = RSP,
        RIP = RIP,
        RFLAGS = RFLAGS,
        PENDING_DEBUG = PENDING_DBG_EXCEPTIONS,
        SYSENTER_ESP = IA32_SYSENTER_ESP,
        SYSENTER_EIP = IA32_SYSENTER_EIP,
    }
    host {
        HOST_ES_SELECTOR = ES_SELECTOR,
        HOST_CS_SELECTOR = CS_SELECTOR,
        HOST_SS_SELECTOR = SS_SELECTOR,
        HOST_DS_SELECTOR = DS_SELECTOR,
        HOST_FS_SELECTOR = FS_SELECTOR,
        HOST_GS_SELECTOR = GS_SELECTOR,
        HOST_TR_SELECTOR = TR_SELECTOR,
        HOST_PAT = IA32_PAT_FULL,
        HOST_EFER = IA32_EFER_FULL,
        HOST_SYSENTER_CS = IA32_SYSENTER_CS,
        HOST_CR0 = CR0,
        HOST_CR3 = CR3,
        HOST_CR4 = CR4,
        HOST_FS_BASE = FS_BASE,
        HOST_GS_BASE = GS_BASE,
        HOST_TR_BASE = TR_BASE,
        HOST_GDTR_BASE = GDTR_BASE,
        HOST_IDTR_BASE = IDTR_BASE,
        HOST_SYSENTER_ESP = IA32_SYSENTER_ESP,
        HOST_SYSENTER_EIP = IA32_SYSENTER_EIP,
        HOST_RIP = RIP,
    }
    ro {
        GUEST_PHYSICAL = GUEST_PHYSICAL_ADDR_FULL,
        INSTRUCTION_ERROR = VM_INSTRUCTION_ERROR,
        EXIT_REASON = EXIT_REASON,
        EXIT_INTERRUPTION = VMEXIT_INTERRUPTION_INFO,
        EXIT_INTERRUPTION_ERROR = VMEXIT_INTERRUPTION_ERR_CODE,
        VECTORING = IDT_VECTORING_INFO,
        VECTORING_ERROR = IDT_VECTORING_ERR_CODE,
        INSTRUCTION_LENGTH = VMEXIT_INSTRUCTION_LEN,
        INSTRUCTION_INFO = VMEXIT_INSTRUCTION_INFO,
        QUALIFICATION = EXIT_QUALIFICATION,
    }
}

/// Position of a segment register among the fields of its kind (SDM vol. 3, appendix B).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SegmentSlot {
    /// Extra segment.
    Es = 0,
    /// Code segment.
    Cs = 1,
    /// Stack segment.
    Ss = 2,
    /// Data segment.
    Ds = 3,
    /// F segment.
    Fs = 4,
    /// G segment.
    Gs = 5,
    /// Local descriptor table.
    Ldtr = 6,
    /// Task register.
    Tr = 7,
}

impl SegmentSlot {
    const fn after(self, first: Field) -> Field {
        Field(first.0 + 2 * self as u32)
    }

    /// Its selector.
    pub const fn selector(self) -> Field {
        self.after(Field::ES_SELECTOR)
    }

    /// Its limit.
    pub const fn limit(self) -> Field {
        self.after(Field::ES_LIMIT)
    }

    /// Its access rights.
    pub const fn rights(self) -> Field {
        self.after(Field::ES_RIGHTS)
    }

    /// Its base.
    pub const fn base(self) -> Field {
        self.after(Field::ES_BASE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use x86::vmx::vmcs::guest;

    #[test]
    fn segments_are_where_the_manual_has_them() {
        for (slot, selector, limit, rights, base) in [
            (
                SegmentSlot::Es,
                guest::ES_SELECTOR,
                guest::ES_LIMIT,
                guest::ES_ACCESS_RIGHTS,
                guest::ES_BASE,
            ),
            (
                SegmentSlot::Ss,
                guest::SS_SELECTOR,
                guest::SS_LIMIT,
                guest::SS_ACCESS_RIGHTS,
                guest::SS_BASE,
            ),
            (
                SegmentSlot::Ldtr,
                guest::LDTR_SELECTOR,
                guest::LDTR_LIMIT,
                guest::LDTR_ACCESS_RIGHTS,
                guest::LDTR_BASE,
            ),
            (
                SegmentSlot::Tr,
                guest::TR_SELECTOR,
                guest::TR_LIMIT,
                guest::TR_ACCESS_RIGHTS,
                guest::TR_BASE,
            ),
        ] {
            let found = [slot.selector(), slot.limit(), slot.rights(), slot.base()];
            assert_eq!(
                found.map(Field::encoding),
                [selector, limit, rights, base],
                "{slot:?}"
            );
        }
    }
}
