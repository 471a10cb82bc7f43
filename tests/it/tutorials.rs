//! Examples from PyTorch's tutorials, on disk, one test for each behaviour. The store is closed and reopened between a
//! change and a read. That two tensors share a storage is shown by its id and by the bytes under `storages/`.

use std::fs;
use std::path::PathBuf;

use ndarray::{ArrayD, ArrayViewD};
use stridemap::{DType, Element, ErrorKind, Source, StorageKind, Store, Tensor, ix};

use crate::harness::processes::OtherProcess;
use crate::harness::{arange, open_mapped};
use crate::support::temporary;

/// A store without an open handle.
struct OnDisk {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl OnDisk {
    fn new() -> Self {
        let dir = temporary();
        let path = dir.path().join("tutorial.smap");
        Store::create(&path).unwrap();
        OnDisk { _dir: dir, path }
    }

    fn holding(name: &str, tensor: &Tensor) -> Self {
        let disk = OnDisk::new();
        let _ = disk.save(name, tensor);
        disk
    }

    fn open(&self) -> Store {
        Store::open(&self.path).unwrap()
    }

    fn load(&self, name: &str) -> Tensor {
        self.open().load(name).unwrap()
    }

    fn save(&self, name: &str, source: &(impl Source + ?Sized)) -> Tensor {
        self.open().save(name, source).unwrap();
        self.load(name)
    }

    fn save_mutable(&self, name: &str, source: &(impl Source + ?Sized)) -> Tensor {
        self.open().write(|txn| txn.save_as(name, source, StorageKind::Mutable)).unwrap();
        self.load(name)
    }

    /// Saves a header, which must not add any bytes of elements.
    fn save_view(&self, name: &str, view: &Tensor) -> Tensor {
        let before = self.data_bytes();
        self.open().save_view(name, view).unwrap();
        assert_eq!(self.data_bytes(), before, "{name} was copied");
        let saved = self.load(name);
        assert_eq!(header(&saved), header(view));
        assert_eq!(saved.storage_id(), view.storage_id());
        saved
    }

    fn files(&self, dir: &str) -> u64 {
        let files = fs::read_dir(self.path.join(dir)).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }

    fn data_bytes(&self) -> u64 {
        self.files("storages")
    }

    /// Returns the elements of a tensor's storage, in the order of the file.
    fn storage_of<T: Element>(&self, tensor: &Tensor) -> Vec<T> {
        let id = tensor.storage_id().unwrap();
        let storage =
            self.open().snapshot().storages().map(Result::unwrap).find(|storage| storage.id == id).unwrap();
        let mut bytes = fs::read(storage.file).unwrap();
        bytes.truncate(storage.size_bytes as usize);
        let length = bytes.len() / T::DTYPE.itemsize();
        Tensor::from_bytes(T::DTYPE, &[length], &bytes).unwrap().read().unwrap()
    }
}

fn header(x: &Tensor) -> (&[usize], &[isize], usize) {
    (x.size(), x.stride(), x.storage_offset())
}

fn floats(x: &Tensor) -> Vec<f32> {
    x.read().unwrap()
}

fn ints(x: &Tensor) -> Vec<i64> {
    x.read().unwrap()
}

fn points() -> Tensor {
    Tensor::from_vec(vec![1f32, 4., 2., 1., 3., 5.], &[3, 2]).unwrap()
}

#[test]
fn t_01_storage_is_one_dimensional_for_every_tensor() {
    let disk = OnDisk::holding("points", &points());
    let tall = disk.load("points");
    let wide = disk.save_view("wide", &tall.view([2, 3]).unwrap());
    assert_eq!(disk.storage_of::<f32>(&tall), [1., 4., 2., 1., 3., 5.]);
    assert_eq!((tall.size(), wide.size()), (&[3, 2][..], &[2, 3][..]));
    assert_eq!((floats(&tall), floats(&wide)), (floats(&points()), floats(&points())));
    assert!(tall.shares_storage(&wide));
    assert_eq!(disk.data_bytes(), 24);
}

#[test]
fn t_02_element_written_in_the_storage_is_read_through_the_tensor() {
    let disk = OnDisk::new();
    let points = disk.save_mutable("points", &points());
    points.as_strided([6], [1], 0).unwrap().select(0, 0).unwrap().lock_exclusive().unwrap().fill_(2).unwrap();
    assert_eq!(floats(&disk.load("points")), [2., 4., 2., 1., 3., 5.]);
    assert_eq!(disk.storage_of::<f32>(&points)[0], 2.);
}

#[test]
fn t_03_header_of_points() {
    let disk = OnDisk::holding("points", &points());
    assert_eq!(header(&disk.load("points")), (&[3, 2][..], &[2, 1][..], 0));
}

#[test]
fn t_04_row_is_a_view_at_an_offset() {
    let disk = OnDisk::holding("points", &points());
    let points = disk.load("points");
    let second = disk.save_view("second", &points.select(0, 1).unwrap());
    assert_eq!(header(&second), (&[2][..], &[1][..], 2));
    assert_eq!(floats(&second), [2., 1.]);
    assert!(second.shares_storage(&points));
}

#[test]
fn t_05_offset_and_strides_lead_to_every_element() {
    let elements = vec![0i64, 5, 7, 4, 1, 3, 2, 7, 3, 8];
    let disk = OnDisk::holding("storage", &Tensor::from_vec(elements.clone(), &[10]).unwrap());
    let x = disk.load("storage").as_strided([3, 3], [3, 1], 1).unwrap();
    for (name, view) in [("x", x.clone()), ("x_t", x.t().unwrap())] {
        let view = disk.save_view(name, &view);
        assert_eq!(view.storage_offset(), 1);
        for (i, j) in (0..9).map(|at| (at / 3, at % 3)) {
            let place = 1 + view.stride()[0] * i + view.stride()[1] * j;
            assert_eq!(view.get::<i64>(&[i, j]).unwrap(), elements[place as usize]);
        }
    }
    assert_eq!(disk.storage_of::<i64>(&x), elements);
    let alone = disk.save("alone", &x);
    assert_eq!((alone.stride(), ints(&alone)), (&[3, 1][..], vec![5, 7, 4, 1, 3, 2, 7, 3, 8]));
}

#[test]
fn t_06_element_of_a_row_is_an_element_of_the_matrix() {
    let disk = OnDisk::new();
    let points = disk.save_mutable("points", &points());
    points.index(ix![1, 0]).unwrap().lock_exclusive().unwrap().fill_(10).unwrap();
    assert_eq!(floats(&disk.load("points")), [1., 4., 10., 1., 3., 5.]);
}

#[test]
fn t_07_clone_of_a_row_has_its_own_storage() {
    let disk = OnDisk::new();
    let points = disk.save_mutable("points", &points());
    let clone = disk.save_mutable("clone", &points.select(0, 1).unwrap().clone_data().unwrap());
    assert!(!clone.shares_storage(&points));
    clone.lock_exclusive().unwrap().fill_(10).unwrap();
    assert_eq!(floats(&disk.load("clone")), [10., 10.]);
    assert_eq!(floats(&disk.load("points")), [1., 4., 2., 1., 3., 5.]);
}

#[test]
fn t_08_transpose_is_another_header_on_the_same_storage() {
    let disk = OnDisk::holding("points", &points());
    let points = disk.load("points");
    let transposed = disk.save_view("points_t", &points.t().unwrap());
    assert_eq!(header(&transposed), (&[2, 3][..], &[1, 2][..], 0));
    assert_eq!(floats(&transposed), [1., 2., 3., 4., 1., 5.]);
    assert!(transposed.shares_storage(&points));
    assert_eq!(disk.data_bytes(), 24);
}

#[test]
fn t_09_transpose_in_three_dimensions_exchanges_size_and_stride() {
    let disk = OnDisk::holding("ones", &Tensor::from_vec(vec![1f32; 60], &[3, 4, 5]).unwrap());
    let ones = disk.load("ones");
    assert_eq!(ones.stride(), [20, 5, 1]);
    let transposed = disk.save_view("ones_t", &ones.transpose(0, 2).unwrap());
    assert_eq!(header(&transposed), (&[5, 4, 3][..], &[1, 5, 20][..], 0));
}

#[test]
fn t_10_contiguous_puts_the_transpose_on_a_new_storage() {
    let disk = OnDisk::holding("points", &points());
    let transposed = disk.save_view("points_t", &disk.load("points").t().unwrap());
    assert!(!transposed.is_contiguous());
    let contiguous = disk.save("contiguous", &transposed.contiguous().unwrap());
    assert!(contiguous.is_contiguous() && !contiguous.shares_storage(&transposed));
    assert_eq!((contiguous.stride(), floats(&contiguous)), (&[3, 1][..], floats(&transposed)));
    assert_eq!(disk.storage_of::<f32>(&contiguous), [1., 2., 3., 4., 1., 5.]);
    assert_eq!(disk.data_bytes(), 48);
}

#[test]
fn t_11_contiguous_strides_are_products_of_the_later_sizes() {
    let equations = |x: &Tensor| -> Vec<bool> {
        let inner = x.stride().iter().zip(x.size()).map(|(step, &n)| step * n as isize).skip(1);
        x.stride().iter().zip(inner).map(|(&step, inner)| step == inner).collect()
    };
    let disk = OnDisk::holding("a", &arange(&[6]).view([2, 3]).unwrap());
    let (a, a_t) = (disk.load("a"), disk.save_view("a_t", &disk.load("a").t().unwrap()));
    assert_eq!((equations(&a), a.is_contiguous()), (vec![true], true));
    assert_eq!((equations(&a_t), a_t.is_contiguous()), (vec![false], false));
    let deep = disk.save("deep", &arange(&[120]).view([2, 3, 4, 5]).unwrap());
    assert_eq!((equations(&deep), deep.is_contiguous()), (vec![true; 3], true));
    let swapped = disk.save_view("swapped", &deep.transpose(1, 2).unwrap());
    assert_eq!((equations(&swapped), swapped.is_contiguous()), (vec![false; 3], false));
}

#[test]
fn t_12_in_place_changes_keep_the_storage_and_other_processes_see_them() {
    let disk = OnDisk::new();
    let points = disk.save_mutable("x", &points());
    let data_bytes = disk.data_bytes();
    let mut other = OtherProcess::start("watch", &disk.path);
    assert_eq!(other.read_line(), "[1.0, 4.0, 2.0, 1.0, 3.0, 5.0]");

    let ones = Tensor::from_vec(vec![1f32, 1.], &[2]).unwrap();
    points.lock_exclusive().unwrap().add_(&ones).unwrap();
    other.resume();
    assert_eq!(other.read_line(), "[2.0, 5.0, 3.0, 2.0, 4.0, 6.0]");
    points.index(ix![..]).unwrap().lock_exclusive().unwrap().copy_(&ones).unwrap();
    other.resume();
    assert_eq!(other.read_line(), "[1.0, 1.0, 1.0, 1.0, 1.0, 1.0]");
    other.assert_success();

    assert_eq!(disk.load("x").storage_id(), points.storage_id());
    assert_eq!(disk.data_bytes(), data_bytes);
}

#[test]
fn t_13_sum_has_a_new_storage_and_the_old_one_is_unchanged() {
    let disk = OnDisk::holding("t1", &points());
    let _ = disk.save("t2", &points().flip([0]).unwrap());
    let old = disk.save_view("old", &disk.load("t1"));
    {
        let store = open_mapped(&disk.path);
        let (t1, t2) = (store.load("t1").unwrap(), store.load("t2").unwrap());
        let [t1, t2] = [&t1, &t2].map(|tensor| ArrayViewD::<f32>::try_from(tensor).unwrap());
        store.save("t1", &(&t1 + &t2)).unwrap();
    }
    let new = disk.load("t1");
    assert_eq!(floats(&new), [4., 9., 4., 2., 4., 9.]);
    assert!(!new.shares_storage(&old) && new.storage_id() != old.storage_id());
    assert_eq!(floats(&disk.load("old")), floats(&points()));
    assert_eq!(disk.data_bytes(), 3 * 24);
}

#[test]
fn t_14_in_place_change_affects_both_names_and_a_sum_only_its_own() {
    let disk = OnDisk::new();
    let t1 = disk.save_mutable("t1", &Tensor::from_vec(vec![6i64, 7, 8, 9], &[4]).unwrap());
    let t2 = disk.save_view("t2", &t1.index(ix![..]).unwrap());
    t2.lock_exclusive().unwrap().add_(1).unwrap();
    for name in ["t1", "t2"] {
        assert_eq!(ints(&disk.load(name)), [7, 8, 9, 10]);
    }
    let sum = ArrayD::<i64>::try_from(&disk.load("t2")).unwrap() + 1;
    let t2 = disk.save("t2", &sum);
    assert_eq!(ints(&t2), [8, 9, 10, 11]);
    assert_eq!(ints(&disk.load("t1")), [7, 8, 9, 10]);
    assert_ne!(t2.storage_id(), t1.storage_id());
}

#[test]
fn t_15_slice_is_a_view() {
    let disk = OnDisk::holding("t2", &Tensor::from_vec(vec![5i64, 6, 7, 8], &[4]).unwrap());
    let t2 = disk.load("t2");
    let middle = disk.save_view("middle", &t2.index(ix![1..3]).unwrap());
    assert_eq!((header(&middle), ints(&middle)), ((&[2][..], &[1][..], 1), vec![6, 7]));
    assert!(middle.shares_storage(&t2));
}

#[test]
fn t_16_reshape_shares_the_storage_if_strides_allow_it() {
    let disk = OnDisk::holding("p1", &arange(&[12]));
    let p1 = disk.load("p1");
    let p2 = disk.save_view("p2", &p1.reshape([3, 4]).unwrap());
    let p3 = disk.save_view("p3", &p2.index(ix![..;2, ..;2]).unwrap());
    let p4 = disk.save_view("p4", &p3.reshape([2, 2]).unwrap());
    let p5 = disk.save_view("p5", &p2.t().unwrap());
    let copied = p5.reshape([6, 2]).unwrap();
    let refusal = disk.open().save_view("p6", &copied).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::NeedsCopy, "it is on p1's storage");
    let p6 = disk.save("p6", &copied);

    let all = [&p1, &p2, &p3, &p4, &p5, &p6];
    let strides: [&[isize]; 6] = [&[1], &[4, 1], &[8, 2], &[8, 2], &[1, 4], &[2, 1]];
    assert_eq!(all.map(Tensor::stride), strides);
    assert_eq!(all.map(Tensor::is_contiguous), [true, true, false, false, false, true]);
    assert_eq!(all.map(|x| x.shares_storage(&p1)), [true, true, true, true, true, false]);
    assert_eq!(ints(&p6), [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
    assert_eq!(disk.data_bytes(), 2 * 96);
}

#[test]
fn t_17_write_through_a_slice_changes_the_whole_tensor() {
    let disk = OnDisk::new();
    let a = disk.save_mutable("a", &arange(&[5]));
    let b = disk.save_view("b", &a.index(ix![2..]).unwrap());
    b.select(0, 1).unwrap().lock_exclusive().unwrap().fill_(0).unwrap();
    assert_eq!(ints(&disk.load("a")), [0, 1, 2, 0, 4]);
    assert_eq!(ints(&disk.load("b")), [2, 0, 4]);
    assert_eq!(disk.open().snapshot().storages().count(), 1);
}

#[test]
fn t_18_view_has_the_strides_of_its_size() {
    let disk = OnDisk::holding("two_by_three", &arange(&[6]).view([2, 3]).unwrap());
    let x = disk.load("two_by_three");
    let y = disk.save_view("three_by_two", &x.view([3, 2]).unwrap());
    assert_eq!((x.stride(), y.stride()), (&[3, 1][..], &[2, 1][..]));
    assert_eq!(ints(&y), ints(&x));
}

/// Returns `a`, three by three, and `b`, its transpose.
fn nine() -> (OnDisk, Tensor, Tensor) {
    let disk = OnDisk::holding("a", &arange(&[9]).view([3, 3]).unwrap());
    let a = disk.load("a");
    let b = disk.save_view("b", &a.permute([1, 0]).unwrap());
    (disk, a, b)
}

#[test]
fn t_19_permute_leaves_the_bytes_in_order() {
    let (disk, a, b) = nine();
    assert_eq!(header(&b), (&[3, 3][..], &[1, 3][..], 0));
    assert!(b.shares_storage(&a));
    assert_eq!(ints(&b), [0, 3, 6, 1, 4, 7, 2, 5, 8]);
    assert_eq!(disk.storage_of::<i64>(&b), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn t_20_view_without_matching_strides_is_refused_with_advice() {
    let (_disk, _, b) = nine();
    let refusal = b.view([9]).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::NeedsCopy);
    assert_eq!(refusal.to_string(), "view([9]): size [3, 3] with stride [1, 3] needs a copy; use reshape");
}

#[test]
fn t_21_contiguous_copy_can_be_viewed_and_reshape_does_both() {
    let (disk, _, b) = nine();
    let order = [0, 3, 6, 1, 4, 7, 2, 5, 8];
    let c = disk.save("c", &b.contiguous().unwrap());
    assert_eq!((c.stride(), disk.storage_of::<i64>(&c)), (&[3, 1][..], order.to_vec()));
    assert_eq!(ints(&disk.save_view("flat", &c.view([9]).unwrap())), order);
    let reshaped = disk.save("reshaped", &b.reshape([9]).unwrap());
    assert_eq!((ints(&reshaped), disk.storage_of::<i64>(&reshaped)), (order.to_vec(), order.to_vec()));
}

#[test]
fn t_22_contiguous_of_a_contiguous_tensor_is_not_a_copy() {
    let (disk, a, _) = nine();
    let same = disk.save_view("same", &a.contiguous().unwrap());
    assert!(same.shares_storage(&a));
    assert_eq!(disk.data_bytes(), 72);
}

#[test]
fn t_23_million_floats_are_four_million_bytes_and_a_small_header() {
    let disk = OnDisk::new();
    let before = disk.files("meta");
    let million = disk.save("million", &Tensor::zeros(DType::F32, &[1_000_000]).unwrap());
    assert_eq!((million.storage_nbytes(), disk.storage_of::<u8>(&million).len()), (4_000_000, 4_000_000));
    // A storage of more than one chunk has a file of chunk digests.
    let (header_bytes, digest_bytes) = (disk.files("meta") - before, disk.data_bytes() - 4_000_000);
    assert!(header_bytes + digest_bytes < 256, "{header_bytes} and {digest_bytes} bytes");
}

#[test]
fn t_24_storage_takes_one_index_for_any_tensor() {
    let disk = OnDisk::holding("points", &points());
    let points = disk.load("points");
    for tensor in [points.clone(), points.t().unwrap(), points.unfold(0, 2, 1).unwrap()] {
        let storage = tensor.as_strided([6], [1], 0).unwrap();
        let refusal = storage.get::<f32>(&[1, 0]).unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::OutOfRange);
        assert_eq!(
            refusal.to_string(),
            "get([1, 0]): expected one position per axis of a tensor of rank 1 (size [6] with stride [1])"
        );
        let elements: Vec<f32> = (0..6).map(|i| storage.get([i]).unwrap()).collect();
        assert_eq!(elements, disk.storage_of::<f32>(&tensor));
    }
}

#[test]
fn t_25_names_of_dimensions_are_kept_and_used() {
    let image = arange(&[24]).view([2, 3, 4]).unwrap().rename(&["channel", "row", "column"]).unwrap();
    let disk = OnDisk::holding("image", &image);
    let image = disk.load("image");
    assert_eq!(image.names(), [Some("channel"), Some("row"), Some("column")]);

    let bare = disk.save_view("bare", &image.rename(&[None, Some("row"), None]).unwrap());
    assert_eq!(bare.names(), [None, Some("row"), None]);
    let refined = disk.save_view("refined", &bare.refine_names(&["channel", "..."]).unwrap());
    assert_eq!(refined.names(), [Some("channel"), Some("row"), None]);
    let refusal = refined.refine_names(&["...", "line", "column"]).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::InvalidArgument);
    let renamed = image.rename(&[Some("..."), Some("line"), None]).unwrap();
    assert_eq!(disk.save_view("renamed", &renamed).names(), [Some("channel"), Some("line"), None]);

    let row = disk.save_view("row", &image.select("row", 1).unwrap());
    assert_eq!(
        (row.names(), header(&row)),
        (vec![Some("channel"), Some("column")], (&[2, 4][..], &[12, 1][..], 4))
    );
    let transposed = disk.save_view("transposed", &image.transpose("channel", "column").unwrap());
    assert_eq!(transposed.names(), [Some("column"), Some("row"), Some("channel")]);

    let weights = Tensor::from_vec(vec![1i64, 2], &[2]).unwrap().rename(&["channel"]).unwrap();
    let weights = disk.save("weights", &weights);
    let aligned = disk.save_view("aligned", &weights.align_as(&image).unwrap());
    assert_eq!((aligned.size(), aligned.names()), (&[2, 1, 1][..], image.names()));
    let aligned = disk.save_view("aligned_to", &weights.align_to(&["batch", "..."]).unwrap());
    assert_eq!((aligned.size(), aligned.names()), (&[1, 2][..], vec![Some("batch"), Some("channel")]));

    // The names of two operands are compared in order, and none is aligned automatically.
    let sums = disk.save_mutable("sums", &image);
    let refusal = sums.lock_exclusive().unwrap().add_(&weights).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::SizeMismatch);
    let misnamed = image.rename(&["row", "channel", "column"]).unwrap();
    let refusal = sums.lock_exclusive().unwrap().copy_(&misnamed).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::SizeMismatch);
    assert_eq!(ints(&disk.load("sums")), ints(&image));
    sums.lock_exclusive().unwrap().add_(&weights.align_as(&image).unwrap()).unwrap();
    assert_eq!(disk.load("sums").get::<i64>(&[1, 0, 0]).unwrap(), 12 + 2);
}

fn round_trip<T: Element + PartialEq + std::fmt::Debug>(disk: &OnDisk, elements: [T; 3]) {
    let saved = disk.save(T::DTYPE.name(), &Tensor::from_vec(elements.to_vec(), &[3]).unwrap());
    assert_eq!((saved.dtype(), saved.storage_nbytes()), (T::DTYPE, 3 * T::DTYPE.itemsize() as u64));
    assert_eq!(saved.read::<T>().unwrap(), elements);
}

#[test]
fn t_26_floats_of_every_width_round_trip_and_indices_are_int64() {
    let disk = OnDisk::new();
    round_trip(&disk, [1f32, 4., 1. / 3.]);
    round_trip(&disk, [1f64, 4., 1. / 3.]);
    round_trip(&disk, [1f32, 4., 1. / 3.].map(half::f16::from_f32));
    round_trip(&disk, [1f32, 4., 1. / 3.].map(half::bf16::from_f32));
    let _ = disk.save("points", &points());
    let rows = disk.save("rows", &Tensor::from_vec(vec![2i64, 0], &[2]).unwrap());
    let selected = disk.save("selected", &disk.load("points").index_select(0, &rows).unwrap());
    assert_eq!((selected.size(), floats(&selected)), (&[2, 2][..], vec![3., 5., 1., 4.]));
    let refusal = disk.load("points").index_select(0, &disk.load("float32")).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::DTypeMismatch);
}

#[test]
fn t_27_view_of_a_larger_storage_keeps_all_of_it() {
    let disk = OnDisk::holding("large", &arange(&[1000]));
    let view = disk.save_view("view", &disk.load("large").narrow(0, 600, 3).unwrap());
    disk.open().remove("large").unwrap();
    let view = {
        drop(view);
        disk.load("view")
    };
    assert_eq!((view.storage_offset(), ints(&view)), (600, vec![600, 601, 602]));
    assert_eq!((view.nbytes(), view.storage_nbytes(), disk.data_bytes()), (24, 8000, 8000));
}
