//! The models, in the order of their numbers.

use super::{Model, Quirks, model, no_table};
use crate::cstate::tables::{atom, client, server};

const DEMOTE: Quirks = Quirks::CLEAR_C1_C3_DEMOTION;
const DEMOTE_LNC: Quirks = Quirks::CLEAR_C6_DEMOTION;
const BYT: Quirks = Quirks::ZERO_DEMOTION_POLICY;
const NO_C1E: Quirks = Quirks::DISABLE_C1E_PROMOTION;
const SET_C1E: Quirks = Quirks::ENABLE_C1E_PROMOTION;
const ACPI: Quirks = Quirks::CST_SWITCHES;
const C1_DEMOTION: Quirks = Quirks::C1_DEMOTION_CONTROL;
const SOCKETS: Quirks = Quirks::BY_SOCKETS;
const IRTL: Quirks = Quirks::BY_IRTL;
const SKLH: Quirks = Quirks::PC10_NEEDS_SGX;
const PC6: Quirks = Quirks::BY_PC6_LIMIT;

/// All models with a record of their own.
pub const MODELS: [Model; 53] = [
    model(
        6,
        0x1a,
        "NEHALEM_EP",
        &client::NEHALEM,
        &[DEMOTE, NO_C1E, ACPI],
    ),
    model(6, 0x1c, "ATOM_BONNELL", &atom::ATOM, &[]),
    model(6, 0x1e, "NEHALEM", &client::NEHALEM, &[DEMOTE, NO_C1E]),
    model(6, 0x1f, "NEHALEM_G", &client::NEHALEM, &[DEMOTE, NO_C1E]),
    model(6, 0x25, "WESTMERE", &client::NEHALEM, &[DEMOTE, NO_C1E]),
    model(6, 0x26, "ATOM_BONNELL_MID", &atom::ATOM, &[DEMOTE_LNC]),
    model(6, 0x2a, "SANDYBRIDGE", &client::SNB, &[NO_C1E]),
    model(
        6,
        0x2c,
        "WESTMERE_EP",
        &client::NEHALEM,
        &[DEMOTE, NO_C1E, ACPI],
    ),
    model(6, 0x2d, "SANDYBRIDGE_X", &client::SNB, &[NO_C1E, ACPI]),
    model(
        6,
        0x2e,
        "NEHALEM_EX",
        &client::NEHALEM,
        &[DEMOTE, NO_C1E, ACPI],
    ),
    model(
        6,
        0x2f,
        "WESTMERE_EX",
        &client::NEHALEM,
        &[DEMOTE, NO_C1E, ACPI],
    ),
    model(6, 0x36, "ATOM_SALTWELL", &atom::ATOM, &[]),
    model(6, 0x37, "ATOM_SILVERMONT", &atom::BYT, &[BYT, NO_C1E]),
    model(6, 0x3a, "IVYBRIDGE", &client::IVB, &[NO_C1E]),
    model(6, 0x3c, "HASWELL", &client::HSW, &[NO_C1E]),
    model(6, 0x3d, "BROADWELL", &client::BDW, &[NO_C1E]),
    model(
        6,
        0x3e,
        "IVYBRIDGE_X",
        &server::IVT,
        &[NO_C1E, ACPI, SOCKETS],
    ),
    model(6, 0x3f, "HASWELL_X", &client::HSW, &[NO_C1E, ACPI]),
    model(6, 0x45, "HASWELL_L", &client::HSW, &[NO_C1E]),
    model(6, 0x46, "HASWELL_G", &client::HSW, &[NO_C1E]),
    model(6, 0x47, "BROADWELL_G", &client::BDW, &[NO_C1E]),
    model(6, 0x4a, "ATOM_SILVERMONT_MID", &atom::TANGIER, &[]),
    model(6, 0x4c, "ATOM_AIRMONT", &atom::CHT, &[BYT, NO_C1E]),
    model(6, 0x4d, "ATOM_SILVERMONT_D", &atom::AVN, &[NO_C1E, ACPI]),
    model(6, 0x4e, "SKYLAKE_L", &client::SKL, &[NO_C1E]),
    model(6, 0x4f, "BROADWELL_X", &client::BDW, &[NO_C1E, ACPI]),
    model(6, 0x55, "SKYLAKE_X", &server::SKX, &[NO_C1E, ACPI, PC6]),
    model(6, 0x56, "BROADWELL_D", &client::BDW, &[NO_C1E, ACPI]),
    model(6, 0x57, "XEON_PHI_KNL", &server::KNL, &[ACPI]),
    model(6, 0x5c, "ATOM_GOLDMONT", &atom::BXT, &[NO_C1E, IRTL]),
    model(6, 0x5e, "SKYLAKE", &client::SKL, &[NO_C1E, SKLH]),
    model(6, 0x5f, "ATOM_GOLDMONT_D", &atom::DNV, &[NO_C1E, ACPI]),
    model(6, 0x6a, "ICELAKE_X", &server::ICX, &[NO_C1E, ACPI]),
    model(6, 0x6c, "ICELAKE_D", &server::ICX, &[NO_C1E, ACPI]),
    model(6, 0x7a, "ATOM_GOLDMONT_PLUS", &atom::BXT, &[NO_C1E, IRTL]),
    model(6, 0x85, "XEON_PHI_KNM", &server::KNL, &[ACPI]),
    model(6, 0x86, "ATOM_TREMONT_D", &atom::SNR, &[NO_C1E, ACPI]),
    model(6, 0x8e, "KABYLAKE_L", &client::SKL, &[NO_C1E]),
    model(
        6,
        0x8f,
        "SAPPHIRERAPIDS_X",
        &server::SPR,
        &[NO_C1E, C1_DEMOTION, ACPI, PC6],
    ),
    no_table(6, 0x96, "ATOM_TREMONT", &[NO_C1E]),
    model(6, 0x97, "ALDERLAKE", &client::ADL, &[SET_C1E]),
    model(6, 0x9a, "ALDERLAKE_L", &client::ADL_L, &[SET_C1E]),
    no_table(6, 0x9c, "ATOM_TREMONT_L", &[NO_C1E]),
    model(6, 0x9e, "KABYLAKE", &client::SKL, &[NO_C1E]),
    model(6, 0xaa, "METEORLAKE_L", &client::MTL_L, &[SET_C1E]),
    model(
        6,
        0xad,
        "GRANITERAPIDS_X",
        &server::GNR,
        &[NO_C1E, C1_DEMOTION, ACPI],
    ),
    model(
        6,
        0xae,
        "GRANITERAPIDS_D",
        &server::GNRD,
        &[NO_C1E, C1_DEMOTION, ACPI],
    ),
    model(
        6,
        0xaf,
        "ATOM_CRESTMONT_X",
        &atom::SRF,
        &[NO_C1E, C1_DEMOTION, ACPI],
    ),
    model(
        6,
        0xb6,
        "ATOM_CRESTMONT",
        &atom::GRR,
        &[NO_C1E, C1_DEMOTION, ACPI],
    ),
    model(6, 0xbe, "ATOM_GRACEMONT", &atom::GMT, &[SET_C1E]),
    model(6, 0xcc, "PANTHERLAKE_L", &client::PTL, &[]),
    model(
        6,
        0xcf,
        "EMERALDRAPIDS_X",
        &server::SPR,
        &[NO_C1E, C1_DEMOTION, ACPI, PC6],
    ),
    model(
        6,
        0xdd,
        "ATOM_DARKMONT_X",
        &atom::SRF,
        &[NO_C1E, C1_DEMOTION, ACPI],
    ),
];
