//! The members of a zip file, checked against each other and against the file.

use stridemap::Result;

use super::directory::{Directory, Entry, Fields};
use crate::file::RawFile;

/// The length of a member's own header, before its bytes, without its name and extra fields.
const LOCAL_HEADER_BYTES: usize = 30;
const LOCAL_SIGNATURE: &[u8] = b"PK\x03\x04";

/// The bits for encrypted bytes or encrypted metadata.
const ENCRYPTED_FLAGS: u64 = 1 | 1 << 6 | 1 << 13;

/// Characters 128 to 255 of code page 437.
const CP437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

/// The maximum number of bytes that one byte can unpack to: 2 bits can encode 258 bytes. A tiny file therefore cannot
/// claim a huge size and reserve space on disk.
const MAX_DEFLATE_RATIO: u64 = 4 * 258;

/// A file within a zip file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// The name in the directory; not a path of any file.
    pub(crate) name: String,
    pub(crate) method: Method,
    /// The offset of the packed bytes in the zip file.
    pub(crate) offset_bytes: u64,
    pub(crate) packed_bytes: u64,
    pub(crate) unpacked_bytes: u64,
    /// The checksum of the unpacked bytes; `None` if the file states none.
    pub(crate) crc32: Option<u32>,
}

/// How the bytes of a member are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Uncompressed: the member is a range of the zip file.
    Stored,
    Deflated,
}

/// Returns the members of a zip file, in the order of its directory. No two members share a name or a byte, and all of
/// them precede the directory. Only the directory and the headers are read; damaged elements are detected when they are
/// unpacked.
pub(crate) fn members(file: &RawFile) -> Result<Vec<Member>> {
    let directory = Directory::find(file)?;
    let mut members = Vec::new();
    let mut ranges = Vec::new();
    directory.for_each_entry(file, &mut |entry| {
        let member = member_of(file, &directory, entry)?;
        ranges.push((entry.start_bytes, member.offset_bytes + member.packed_bytes, members.len()));
        members.push(member);
        Ok(())
    })?;
    check_apart(file, &members, ranges)?;
    check_names(file, &members)?;
    Ok(members)
}

/// Reads an entry of the directory and the member's own header, which must agree.
fn member_of(file: &RawFile, directory: &Directory, entry: &Entry<'_>) -> Result<Member> {
    let name = name_of(entry.raw_name);
    let refused = |what: &str| file.bad(format!("member {name:?} of the zip file {what}"));
    let outside = || refused("is outside the file, or overlaps the directory");

    let &Entry { raw_name, start_bytes, packed_bytes, unpacked_bytes, crc32, .. } = entry;
    let mut header = vec![0; LOCAL_HEADER_BYTES + raw_name.len()];
    let header_end_bytes = start_bytes.checked_add(header.len() as u64);
    header_end_bytes.filter(|&end| end <= directory.start_bytes).ok_or_else(outside)?;
    file.read_at(&mut header, start_bytes)?;
    let (fixed, local_name) = header.split_at(LOCAL_HEADER_BYTES);
    let fields = Fields(fixed);
    if !fixed.starts_with(LOCAL_SIGNATURE) {
        return Err(refused(&format!("has no header at byte {start_bytes}, the offset in the directory")));
    }
    if (fields.u16(6) | entry.flags) & ENCRYPTED_FLAGS != 0 {
        return Err(refused("is encrypted"));
    }
    let code = fields.u16(8);
    let method = match (entry.method, code) {
        (0, 0) => Method::Stored,
        (8, 8) => Method::Deflated,
        (0 | 8, _) => {
            return Err(refused("has different compression methods in the directory and in its own header"));
        }
        (other, _) => {
            let what = format!(
                "is compressed with {}; only stored and deflated members can be read",
                method_name(other)
            );
            return Err(refused(&what));
        }
    };
    if fields.u16(26) != raw_name.len() as u64 || local_name != raw_name {
        return Err(refused("has a different name in its own header"));
    }
    let offset_bytes = start_bytes + LOCAL_HEADER_BYTES as u64 + fields.u16(26) + fields.u16(28);
    let end_bytes = offset_bytes.checked_add(packed_bytes);
    end_bytes.filter(|&end| end <= directory.start_bytes).ok_or_else(outside)?;
    if method == Method::Stored && packed_bytes != unpacked_bytes {
        return Err(refused(&format!(
            "is stored uncompressed in {packed_bytes} bytes, but should have {unpacked_bytes}"
        )));
    }
    if method == Method::Deflated && unpacked_bytes > packed_bytes.saturating_mul(MAX_DEFLATE_RATIO) {
        return Err(refused(&format!(
            "is deflated to {packed_bytes} bytes, which cannot unpack to the stated {unpacked_bytes}"
        )));
    }
    Ok(Member { name, method, offset_bytes, packed_bytes, unpacked_bytes, crc32: Some(crc32) })
}

/// Refuses members that overlap, which could unpack to far more bytes than the file has.
fn check_apart(file: &RawFile, members: &[Member], mut ranges: Vec<(u64, u64, usize)>) -> Result<()> {
    ranges.sort_unstable();
    let overlap = ranges.windows(2).find_map(|pair| match *pair {
        [(_, end, one), (start, _, other)] if end > start => Some((members.get(one)?, members.get(other)?)),
        _ => None,
    });
    match overlap {
        Some((one, other)) => {
            Err(file.bad(format!("members {:?} and {:?} of the zip file overlap", one.name, other.name)))
        }
        None => Ok(()),
    }
}

fn check_names(file: &RawFile, members: &[Member]) -> Result<()> {
    let mut names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair.first() == pair.last()) {
        Some([name, ..]) => {
            Err(file.bad(format!("two members of the zip file have the same name, {name:?}")))
        }
        _ => Ok(()),
    }
}

fn method_name(code: u64) -> String {
    let known =
        [(9, "deflate64"), (12, "bzip2"), (14, "lzma"), (93, "zstd"), (95, "xz"), (98, "ppmd"), (99, "AES")];
    let name = known.iter().find(|&&(known, _)| known == code).map(|&(_, name)| name);
    name.map_or_else(|| format!("method {code}"), str::to_owned)
}

/// Decodes a name as UTF-8, whatever the flags say, or else as code page 437.
fn name_of(raw_name: &[u8]) -> String {
    let high = |byte: u8| CP437.chars().nth(usize::from(byte & 0x7f)).unwrap_or(char::REPLACEMENT_CHARACTER);
    let character = |&byte: &u8| if byte.is_ascii() { byte.into() } else { high(byte) };
    str::from_utf8(raw_name).map_or_else(|_| raw_name.iter().map(character).collect(), str::to_owned)
}
