//! Builds checkpoints by hand: both layouts, around any pickle and storages.

/// Returns the pickle of a dict with one float32 tensor `w` of two elements on storage `0`. The parameters are
/// instructions: the rest of the persistent id, and the offset, size and stride.
pub(crate) fn tensor(numel: &[u8], offset: &[u8], size: &[u8], stride: &[u8]) -> Vec<u8> {
    let storage =
        [b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu", numel, b"tQ"].concat();
    let call =
        [b"ctorch._utils\n_rebuild_tensor_v2\n(", &storage[..], offset, size, stride, b"\x89NtR"].concat();
    [b"\x80\x02}X\x01\0\0\0w", &call[..], b"s."].concat()
}

/// Builds a checkpoint in the layout before 1.6 from a pickle and its storages.
pub(crate) fn legacy(object: &[u8], storages: &[(&str, &[f32])]) -> Vec<u8> {
    let mut file = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.".to_vec();
    file.extend(b"\x80\x02}X\x0d\0\0\0little_endian\x88s.");
    file.extend(object);
    file.extend(b"\x80\x02](");
    for (key, _) in storages {
        file.extend(text(key));
    }
    file.extend(b"e.");
    for (_, elements) in storages {
        file.extend((elements.len() as u64).to_le_bytes());
        file.extend(elements.iter().flat_map(|x| x.to_le_bytes()));
    }
    file
}

pub(super) fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Builds a zip file with these members, uncompressed.
pub(crate) fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let length = (bytes.len() as u32).to_le_bytes();
        let mut common = b"\x14\0\0\0\0\0\0\0\x21\0".to_vec();
        common.extend(crc32(bytes).to_le_bytes());
        common.extend([length, length].concat());
        common.extend([(name.len() as u16).to_le_bytes(), [0, 0]].concat());
        directory.extend([b"PK\x01\x02\x14\0", &common[..], &[0; 10]].concat());
        directory.extend((file.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        file.extend([b"PK\x03\x04", &common[..], name.as_bytes(), bytes].concat());
    }
    let count = (members.len() as u16).to_le_bytes();
    let start = (file.len() as u32).to_le_bytes();
    let length = (directory.len() as u32).to_le_bytes();
    file.extend(directory);
    file.extend([b"PK\x05\x06\0\0\0\0", &[count, count].concat()[..], &length, &start, b"\0\0"].concat());
    file
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}
