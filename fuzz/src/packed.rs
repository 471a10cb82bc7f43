//! The encoding of a store as one input: a list of files, each one byte for its name, three for its length, then its
//! bytes.

/// The file names. The index of a name encodes it.
pub const NAMES: [&str; 21] = [
    "FORMAT",
    "LOCK",
    "UNSYNCED",
    "meta/0000000000000001.man",
    "meta/0000000000000002.man",
    "meta/0000000000000003.man",
    "generations/0000000000000001.tab",
    "generations/0000000000000002.tab",
    "generations/0000000000000003.tab",
    "storages/0000000000000001.bin",
    "storages/0000000000000002.bin",
    "storages/0000000000000003.bin",
    "storages/0000000000000001.sum",
    "storages/0000000000000002.sum",
    "storages/.stage-0",
    "meta/.stage-1",
    "generations/0000000000000001.man",
    "generations/0000000000000002.man",
    "meta/0000000000000002.his",
    "meta/0000000000000003.his",
    "generations/0000000000000003.man",
];

/// The bit of the name byte that means that the file's digests are corrected.
pub const MENDED: u8 = 0x80;
