//! The tensors of an array: one, or one for each field of a structured array.

use stridemap::{DType, Error, Header};
use stridemap_format::check_numel;

use super::dtype::ParsedDescr;
use super::header::{ArrayHeader, Descriptor, FieldDescr, column_major};
use crate::ForeignOptions;
use crate::budget::Budget;
use crate::contents::{Contents, ForeignTensor, Skipped};
use crate::fields::Fields;
use crate::file::RawFile;
use crate::foreign_storage::{Field, ForeignStorage};

/// The approximate memory of a field: its header as a `Part` and as a `ForeignTensor`, its name, its lists, and the
/// reason if it is left out.
const FIELD_BYTES: usize = 600;

/// The memory of a dimension of a field: a size and a stride.
const DIM_BYTES: usize = 16;

/// The length of headers and texts from which the memory limit is computed, whatever their real length is.
const ASSUMED_BYTES: usize = 1 << 20;

/// The memory allowed for any file.
const FIXED_BYTES: u64 = 2 << 20;

/// Returns the memory limit for the fields and texts of a file. It does not depend on the real length of the headers:
/// they can be compressed, and a few bytes of a header can describe fields that take much memory.
pub(super) fn budget(file: &RawFile) -> Budget {
    Budget::of(ASSUMED_BYTES, file.length_bytes(), FIXED_BYTES)
}

/// The tensors that a header describes. Their bytes are at the offset that `Preamble` states.
pub(super) struct Array {
    /// The parts in the storage that holds all of the array.
    parts: Vec<Part>,
    /// Fields that cannot be headers over that storage. Each gets a storage of its own.
    copied: Vec<CopiedPart>,
    /// The suffixes of the names of the fields that were left out, each with the reason.
    skipped: Vec<(String, String)>,
    pub(super) length_bytes: u64,
    /// The size of the units whose bytes must be reversed, if greater than one.
    swap_unit_bytes: usize,
    is_structured: bool,
}

struct Part {
    /// What follows the name of the array: nothing, or a dot and the name of the field.
    suffix: String,
    header: Header,
}

/// A field that is copied out of the records, and the size of its units whose bytes must be reversed.
struct CopiedPart {
    part: Part,
    field: Field,
    swap_unit_bytes: usize,
}

/// The type of elements, and the size of the units whose bytes must be reversed, if greater than one.
type ElementType = (DType, usize);

impl Array {
    pub(super) fn of(
        header: &ArrayHeader<'_>,
        options: ForeignOptions,
        budget: &mut Budget,
    ) -> Result<Self, String> {
        let size = header.size.as_slice();
        let order = if header.is_fortran_order { column_major } else { Header::contiguous };
        let array_of = |dtype| order(dtype, size).map_err(|e| e.to_string());
        match &header.descr {
            &Descriptor::One(descr) => {
                let (dtype, swap_unit_bytes) = dtype_of(descr, options)?;
                let length_bytes = length_of(size, dtype.itemsize() as u64)?;
                let parts = vec![Part { suffix: String::new(), header: array_of(dtype)? }];
                Ok(Array {
                    parts,
                    copied: Vec::new(),
                    skipped: Vec::new(),
                    length_bytes,
                    swap_unit_bytes,
                    is_structured: false,
                })
            }
            Descriptor::Fields(fields) => {
                let ranks = fields.iter().map(|field| size.len().saturating_add(field.size.len()));
                let bytes = ranks.map(|rank| FIELD_BYTES.saturating_add(rank.saturating_mul(DIM_BYTES)));
                budget.charge(bytes.fold(0, usize::saturating_add))?;
                let (field_offsets, record_bytes) = field_offsets(fields)?;
                let length_bytes = length_of(size, record_bytes)?;
                let (records, field_offsets) = (array_of(DType::U8)?, field_offsets.into_iter());
                let mut array = Array {
                    parts: Vec::new(),
                    copied: Vec::new(),
                    skipped: Vec::new(),
                    length_bytes,
                    swap_unit_bytes: 0,
                    is_structured: true,
                };
                for (field, offset_bytes) in
                    fields.iter().zip(field_offsets).filter(|(field, _)| !field.is_padding())
                {
                    let added = array.add(field, &records, (offset_bytes, record_bytes), options);
                    let added = added.map_err(|e| format!("the field {:?}: {e}", field.name));
                    match added {
                        Err(e) if options.is_skipping_unreadable => array.skipped.push((field.suffix(), e)),
                        added => added?,
                    }
                }
                if array.parts.is_empty() && array.copied.is_empty() && array.skipped.is_empty() {
                    return Err("the elements are structures without fields".to_owned());
                }
                Ok(array)
            }
        }
    }

    /// Adds the tensor of a field, which is at the same offset in each record.
    fn add(
        &mut self,
        field: &FieldDescr<'_>,
        records: &Header,
        (offset_bytes, record_bytes): (u64, u64),
        options: ForeignOptions,
    ) -> Result<(), String> {
        if field.name.is_empty() {
            return Err("it has no name; rename it".to_owned());
        }
        let (dtype, swap_unit_bytes) = dtype_of(field.descr, options)?;
        let item_bytes = dtype.itemsize() as u64;
        let is_aligned = offset_bytes.is_multiple_of(item_bytes) && record_bytes.is_multiple_of(item_bytes);
        let is_first = self.parts.is_empty();
        if is_aligned && is_first {
            self.swap_unit_bytes = swap_unit_bytes;
        }
        // The bytes of a storage are all reversed in the same way.
        let is_shared = is_aligned && (is_first || self.swap_unit_bytes == swap_unit_bytes);
        let too_large = || {
            let size = records.size();
            format!("an array of size {size:?} with elements of {record_bytes} bytes is too large")
        };
        let within = Header::contiguous(dtype, &field.size).map_err(|e| e.to_string())?;
        let step_elems = if is_shared { record_bytes / item_bytes } else { within.numel() as u64 };
        let step = isize::try_from(step_elems).map_err(|_| too_large())?;
        let stride = records.stride().iter().map(|stride| stride.checked_mul(step));
        let stride = stride.chain(within.stride().iter().map(|&stride| Some(stride)));
        let stride: Vec<isize> = stride.collect::<Option<_>>().ok_or_else(too_large)?;
        let size = [records.size(), &field.size].concat();
        let is_at_start = !is_shared || size.contains(&0);
        let offset = if is_at_start { 0 } else { (offset_bytes / item_bytes) as usize };
        let header = Header::new(dtype, size, stride, offset).map_err(|e| e.to_string())?;
        let part = Part { suffix: field.suffix(), header };
        if is_shared {
            self.parts.push(part);
            return Ok(());
        }
        let [record_bytes, offset_bytes, length_bytes] =
            [record_bytes, offset_bytes, item_bytes.saturating_mul(within.numel() as u64)]
                .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let earlier = self.copied.last().map(|last| last.field);
        let earlier_bytes = earlier.map_or(0, |last| last.earlier_bytes.saturating_add(last.length_bytes));
        let field = Field { record_bytes, offset_bytes, length_bytes, earlier_bytes };
        self.copied.push(CopiedPart { part, field, swap_unit_bytes });
        Ok(())
    }

    /// Adds the tensors to the contents of a file. `bad` converts the reason why a field was left out into an error.
    pub(super) fn add_to(
        self,
        contents: &mut Contents,
        name: &str,
        mut storage: ForeignStorage,
        bad: impl Fn(String) -> Error,
    ) {
        let fields = Fields::of(self.copied.iter().map(|copied| copied.field).collect());
        for CopiedPart { part, field, swap_unit_bytes } in self.copied {
            let mut own = storage.clone().of_field(field);
            own.conversion.swap_unit_bytes = swap_unit_bytes;
            own.conversion.fields.clone_from(&fields);
            contents.tensors.push(part.named(name, contents.storages.len()));
            contents.storages.push(own);
        }
        let index = contents.storages.len();
        storage.conversion.swap_unit_bytes = self.swap_unit_bytes;
        storage.is_imported_whole = self.is_structured;
        if !self.parts.is_empty() {
            contents.storages.push(storage);
        }
        contents.tensors.extend(self.parts.into_iter().map(|part| part.named(name, index)));
        contents.skipped.extend(
            self.skipped
                .into_iter()
                .map(|(suffix, what)| Skipped { name: format!("{name}{suffix}"), reason: bad(what) }),
        );
    }
}

impl Part {
    /// Returns the tensor of this part of the array with this name.
    fn named(self, array: &str, storage: usize) -> ForeignTensor {
        ForeignTensor::new(format!("{array}{}", self.suffix), self.header, storage)
    }
}

impl FieldDescr<'_> {
    /// Returns whether this is unused space between fields.
    fn is_padding(&self) -> bool {
        self.name.is_empty() && self.descr.trim_start_matches(['<', '>', '=', '|']).starts_with('V')
    }

    fn suffix(&self) -> String {
        format!(".{}", self.name)
    }
}

/// Returns the offset of each field in a record, and the length of a record, in bytes.
fn field_offsets(fields: &[FieldDescr<'_>]) -> Result<(Vec<u64>, u64), String> {
    let mut record_bytes = 0u64;
    let mut field_offsets = Vec::with_capacity(fields.len());
    for FieldDescr { name, descr, size } in fields {
        field_offsets.push(record_bytes);
        // Elements of unknown length are refused. Most are Python objects, stored as a pickle instead of records.
        let item_bytes = ParsedDescr::item_bytes(descr).ok_or_else(|| {
            let why = ParsedDescr::parse(descr, None).err().unwrap_or_default();
            format!("the field {name:?}: {why}")
        })?;
        let end_bytes = length_of(size, item_bytes).ok().and_then(|length| record_bytes.checked_add(length));
        record_bytes = end_bytes.ok_or_else(|| format!("the field {name:?}: shape {size:?} is too large"))?;
    }
    Ok((field_offsets, record_bytes))
}

/// Returns the type of elements.
fn dtype_of(descr: &str, options: ForeignOptions) -> Result<ElementType, String> {
    let ParsedDescr { dtype, is_big_endian } = ParsedDescr::parse(descr, options.untyped)?;
    let swap_unit_bytes = match dtype {
        _ if !is_big_endian => 0,
        // The real and the imaginary part are swapped separately.
        DType::C64 | DType::C128 => dtype.itemsize() / 2,
        _ => dtype.itemsize(),
    };
    Ok((dtype, swap_unit_bytes))
}

/// Returns the length of an array in bytes.
fn length_of(size: &[usize], item_bytes: u64) -> Result<u64, String> {
    let length_bytes = check_numel(size).ok().and_then(|numel| (numel as u64).checked_mul(item_bytes));
    length_bytes.ok_or_else(|| format!("shape {size:?} is too large"))
}
