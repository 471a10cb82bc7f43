//! Zip files in which every field can be wrong: built from correct members, then changed field by field.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use stridemap_fuzz::foreign::Workplace;
use stridemap_fuzz::zip::{Stored, archive, headers, mend};

#[derive(Arbitrary, Debug)]
struct Plan {
    members: Vec<(Name, Content)>,
    changes: Vec<Change>,
    mends: bool,
}

#[derive(Arbitrary, Debug)]
enum Name {
    Array(u8),
    Pickle,
    Storage(u8),
    Version,
    Byteorder,
    Any(String),
}

#[derive(Arbitrary, Debug)]
enum Content {
    Floats(u8),
    Empty,
    Any(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct Change {
    place: Place,
    offset_bytes: u8,
    number: Number,
}

#[derive(Arbitrary, Debug)]
enum Place {
    Entry(u8),
    Local(u8),
    End(u8),
    Middle(u16),
    CutAt(u16),
    Insert(u16),
}

#[derive(Arbitrary, Debug)]
enum Number {
    Byte(u8),
    Short(u16),
    Long(u32),
    Huge(u64),
}

impl Name {
    fn text(&self) -> String {
        match self {
            Name::Array(n) => format!("arr_{}.npy", n % 8),
            Name::Pickle => "x/data.pkl".into(),
            Name::Storage(n) => format!("x/data/{}", n % 4),
            Name::Version => "x/version".into(),
            Name::Byteorder => "x/byteorder".into(),
            Name::Any(text) => text.chars().take(80).collect(),
        }
    }
}

impl Content {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Content::Floats(count) => {
                let count = usize::from(count % 16);
                let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}");
                let header = format!("{header:<117}\n");
                [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &vec![1; 4 * count]].concat()
            }
            Content::Empty => Vec::new(),
            Content::Any(bytes) => bytes.iter().copied().take(2048).collect(),
        }
    }
}

fn change(bytes: &mut Vec<u8>, Change { place, offset_bytes, number }: &Change) {
    let value = match number {
        Number::Byte(n) => vec![*n],
        Number::Short(n) => n.to_le_bytes().to_vec(),
        Number::Long(n) => n.to_le_bytes().to_vec(),
        Number::Huge(n) => n.to_le_bytes().to_vec(),
    };
    let found = headers(bytes);
    let header = |n: &u8| found.get(usize::from(*n) % found.len().max(1)).copied();
    let at = match place {
        Place::Entry(n) => header(n).map_or(0, |(entry, _)| entry) + usize::from(offset_bytes % 64),
        Place::Local(n) => header(n).map_or(0, |(_, local)| local) + usize::from(offset_bytes % 48),
        Place::End(back) => bytes.len().saturating_sub(usize::from(*back)),
        Place::Middle(at) => usize::from(*at) % bytes.len().max(1),
        Place::CutAt(at) => return bytes.truncate(usize::from(*at)),
        Place::Insert(at) => {
            let at = usize::from(*at) % (bytes.len() + 1);
            drop(bytes.splice(at..at, value));
            return;
        }
    };
    for (to, from) in bytes.iter_mut().skip(at).zip(value) {
        *to = from;
    }
}

fuzz_target!(|plan: Plan| {
    static PLACE: OnceLock<Workplace> = OnceLock::new();
    let place = PLACE.get_or_init(|| Workplace::new("zip"));
    let members: Vec<_> =
        plan.members.iter().take(8).map(|(name, content)| (name.text(), content.bytes())).collect();
    let members: Vec<_> = members.iter().map(|(name, bytes)| Stored { name, bytes }).collect();
    let mut bytes = archive(&members);
    plan.changes.iter().take(8).for_each(|one| change(&mut bytes, one));
    if plan.mends {
        mend(&mut bytes);
    }
    place.read(&bytes);
});
