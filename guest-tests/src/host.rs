//! Who runs this guest, by the signature in CPUID 4000_0000h.

/// The kinds of machine a guest treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// No hypervisor bit: bare metal, or an emulator that says so.
    Bare,
    /// QEMU's own emulation: as good as bare.
    Tcg,
    /// Lull.
    Lull,
    /// Linux KVM.
    Kvm,
    /// Xen.
    Xen,
    /// VMware, whose timing leaf others have copied.
    Vmware,
    /// Another one.
    Other,
}

impl Host {
    /// By the twelve characters of EBX, ECX, EDX.
    #[must_use]
    pub fn by_signature(signature: &[u8; 12]) -> Self {
        match signature {
            b"LullLullLull" => Self::Lull,
            b"XenVMMXenVMM" => Self::Xen,
            b"TCGTCGTCGTCG" => Self::Tcg,
            b"VMwareVMware" => Self::Vmware,
            b"KVMKVMKVM\0\0\0" => Self::Kvm,
            _ => Self::Other,
        }
    }

    /// Whether leaf 4000_0010h, where it exists, gives the TSC frequency in kHz in EAX and the LAPIC timer's in EBX: defined by
    /// VMware, offered by KVM's front ends, and part of Lull's guest ABI. On others the number may mean anything.
    #[must_use]
    pub const fn has_timing_leaf(self) -> bool {
        matches!(self, Self::Lull | Self::Vmware | Self::Kvm)
    }

    /// A word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Tcg => "tcg",
            Self::Lull => "lull",
            Self::Kvm => "kvm",
            Self::Xen => "xen",
            Self::Vmware => "vmware",
            Self::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures() {
        assert_eq!(Host::by_signature(b"LullLullLull"), Host::Lull);
        assert_eq!(Host::by_signature(b"KVMKVMKVM\0\0\0"), Host::Kvm);
        assert_eq!(Host::by_signature(b"KVMKVMKVMKVM"), Host::Other);
        assert!(Host::Lull.has_timing_leaf());
        assert!(!Host::Xen.has_timing_leaf());
    }
}
