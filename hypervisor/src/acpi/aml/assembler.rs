//! A few words of AML, for tests. ACPI specification 6.5, 20.2.

pub(super) fn sized(op: &[u8], body: &[u8]) -> Vec<u8> {
    let two = body.len() + 2;
    assert!(two < 1 << 12);
    let length = if body.len() + 1 < 64 {
        vec![body.len() as u8 + 1]
    } else {
        vec![0x40 | (two & 0xF) as u8, (two >> 4) as u8]
    };
    [op, &length, body].concat()
}

/// A whole table of the terms, with a header.
pub(super) fn table(terms: &[u8]) -> Vec<u8> {
    [&b"SSDT"[..], &[0; 32], terms].concat()
}

pub(super) fn integer(value: u32) -> Vec<u8> {
    [&[0x0C][..], &value.to_le_bytes()].concat()
}

pub(super) fn buffer(bytes: &[u8]) -> Vec<u8> {
    sized(&[0x11], &[&integer(bytes.len() as u32), bytes].concat())
}

pub(super) fn package(elements: &[Vec<u8>]) -> Vec<u8> {
    sized(
        &[0x12],
        &[&[elements.len() as u8][..], &elements.concat()].concat(),
    )
}

pub(super) fn name(name: &[u8; 4], value: &[u8]) -> Vec<u8> {
    [&[0x08][..], name, value].concat()
}

pub(super) fn method(name: &[u8; 4], arguments: u8, body: &[u8]) -> Vec<u8> {
    sized(&[0x14], &[&name[..], &[arguments], body].concat())
}

/// `Processor (\_PR.name, id, p_blk, 6) { body }`
pub(super) fn processor(name: &[u8; 4], id: u8, p_blk: u32, body: &[u8]) -> Vec<u8> {
    let head = [&b"\\\x2E_PR_"[..], name, &[id], &p_blk.to_le_bytes(), &[6]].concat();
    sized(&[0x5B, 0x83], &[&head, body].concat())
}

/// `CreateDWordField (Arg<n>, offset, DW<n>_) ; Store (DW<n>_, \target)`
pub(super) fn keep_dword(argument: u8, offset: u32, field: &[u8; 4], target: &[u8; 4]) -> Vec<u8> {
    [
        &[0x8A, 0x68 + argument][..],
        &integer(offset),
        field,
        &[0x70],
        field,
        b"\\",
        target,
    ]
    .concat()
}

/// `If (And (\name, mask)) { then }`
pub(super) fn if_bits(name: &[u8; 4], mask: u32, then: &[u8]) -> Vec<u8> {
    let predicate = [&[0x7B, b'\\'][..], name, &integer(mask), &[0]].concat();
    sized(&[0xA0], &[&predicate, then].concat())
}

pub(super) fn give_back(value: &[u8]) -> Vec<u8> {
    [&[0xA4], value].concat()
}

/// An entry of `_CST`: the register descriptor, type and latency.
pub(super) fn state(register: [u8; 4], address: u64, kind: u32, latency: u32) -> Vec<u8> {
    let bytes = [
        &[0x82, 12, 0][..],
        &register,
        &address.to_le_bytes(),
        &[0x79, 0],
    ]
    .concat();
    package(&[
        buffer(&bytes),
        integer(kind),
        integer(latency),
        integer(500),
    ])
}

pub(super) fn mwait(hint: u64, kind: u32, latency: u32) -> Vec<u8> {
    state([0x7F, 1, 2, 1], hint, kind, latency)
}

pub(super) fn port(port: u64, kind: u32, latency: u32) -> Vec<u8> {
    state([1, 8, 0, 1], port, kind, latency)
}

pub(super) fn list(states: &[Vec<u8>]) -> Vec<u8> {
    let mut elements = vec![integer(states.len() as u32)];
    elements.extend_from_slice(states);
    package(&elements)
}
