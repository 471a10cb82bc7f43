//! Files that PyTorch would never write: each is refused with one line, quickly and in little memory.

use stridemap_interop::{ForeignFile, ForeignOptions};

use super::forge::{archive, legacy, tensor, text};
use super::refusal;
use crate::place::write_old;
use crate::support::temporary;

/// Returns the error for a file with these bytes.
fn refusal_of(bytes: &[u8]) -> String {
    let dir = temporary();
    let path = dir.path().join("hostile.pt");
    write_old(&path, bytes);
    refusal(&path)
}

/// Asserts that a checkpoint of this object is refused, in both layouts, with a message that contains `part`.
fn assert_refused(object: &[u8], part: &str) {
    let storage = [0.5f32.to_le_bytes(), 1.5f32.to_le_bytes()].concat();
    for file in [
        legacy(object, &[("0", &[0.5, 1.5])]),
        archive(&[("m/data.pkl", object), ("m/byteorder", b"little"), ("m/data/0", &storage)]),
    ] {
        let message = refusal_of(&file);
        assert!(message.contains(part), "{message}, and not {part}");
    }
}

const GOOD: [&[u8]; 4] = [b"K\x02", b"K\x00", b"K\x02\x85", b"K\x01\x85"];

fn good() -> Vec<u8> {
    tensor(GOOD[0], GOOD[1], GOOD[2], GOOD[3])
}

#[test]
fn valid_handmade_checkpoint_is_read() {
    let dir = temporary();
    let path = dir.path().join("good.pt");
    let storage = [0.5f32.to_le_bytes(), 1.5f32.to_le_bytes()].concat();
    for file in [
        legacy(&good(), &[("0", &[0.5, 1.5])]),
        archive(&[("m/data.pkl", &good()), ("m/data/0", &storage)]),
        archive(&[("data/data.pkl", &good()), ("data/data/0", &storage)]),
    ] {
        write_old(&path, &file);
        assert_eq!(ForeignFile::open(&path).unwrap().load("w").unwrap().read::<f32>().unwrap(), [0.5, 1.5]);
    }
}

#[test]
fn headers_that_reach_past_their_storage_are_refused() {
    let max = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";
    let [numel, offset, size, stride] = GOOD;
    for (object, part) in [
        (
            tensor(numel, b"K\x01", size, stride),
            "\"w\" has size [2], stride [1] and offset 1 in 8 bytes of float32: ",
        ),
        (tensor(numel, max, size, stride), "offset 9223372036854775807 in 8 bytes"),
        (tensor(numel, offset, size, &[max, &b"\x85"[..]].concat()), "stride [9223372036854775807]"),
        (
            tensor(numel, offset, &[&max[..], max, b"\x86"].concat(), b"K\x00K\x00\x86"),
            "product of the sizes",
        ),
        (tensor(numel, offset, b"J\xff\xff\xff\xff\x85", stride), "PyTorch allows no negative numbers"),
        (tensor(numel, offset, size, b"J\xff\xff\xff\xff\x85"), "PyTorch allows no negative numbers"),
        (tensor(numel, b"J\xff\xff\xff\xff", size, stride), "PyTorch allows no negative numbers"),
        (tensor(numel, offset, size, b"K\x01K\x01\x86"), "the numbers of sizes and strides differ"),
        (tensor(numel, offset, b"K\x02", stride), "a size or stride that is not a tuple of integers"),
        (tensor(numel, b"N", size, stride), "an offset that is not an integer"),
        (tensor(b"J\xff\xff\xff\xff", offset, size, stride), "a number of elements that no file can hold"),
        (tensor(max, offset, size, stride), "a number of elements that no file can hold"),
        (tensor(b"X\x01\0\0\x002", offset, size, stride), "a number of elements that no file can hold"),
    ] {
        assert_refused(&object, part);
    }
    let rank = [&b"("[..], &b"K\x01".repeat(65), b"t"].concat();
    assert_refused(&tensor(numel, offset, &rank, &rank), "at most 64");
    for (object, part) in [(tensor(b"K\x03", offset, size, stride), "storage \"0\" has "), (good(), "0")] {
        assert!(refusal_of(&legacy(&object, &[("0", &[0.5])])).contains(part));
    }
}

#[test]
fn calls_are_never_run_and_are_refused_by_name() {
    for (object, part) in [
        (&b"\x80\x02cos\nsystem\nX\x02\0\0\0id\x85R."[..], "calls os.system, which is code"),
        (b"\x80\x02cos\nsystem\n.", "calls os.system, which is code"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "calls os.system, which is code"),
        (
            b"\x80\x02}X\x01\0\0\0kX\x02\0\0\0osX\x06\0\0\0system\x93s.",
            "\"k\" calls os.system, which is code",
        ),
        (b"\x80\x04K\x01\x8c\x06system\x93.", "a Python name that is not text"),
        (b"\x80\x02(ios\nsystem\n.", "calls os.system, which is code"),
        (b"\x80\x02(icollections\nOrderedDict\n.", "creates an instance of collections.OrderedDict"),
        (b"\x80\x02(cos\nsystem\no.", "calls os.system"),
        (b"\x80\x02(ccollections\nOrderedDict\no.", "creates an instance of collections.OrderedDict"),
        (b"\x80\x02(o.", "nothing on the stack"),
        (b"\x80\x02c__builtin__\neval\n.", "calls builtins.eval"),
        (b"\x80\x02ctorch\n_utils._rebuild_tensor\n.", "calls torch._utils._rebuild_tensor, which is code"),
        (b"\x80\x02ccollections\nOrderedDict\nx)R.", "0x78 is not a pickle instruction"),
        (b"\x80\x02ccollections.OrderedDict\n\n.", "calls collections.OrderedDict., which is code"),
        (b"\x80\x02ccopyreg\n__newobj__\ncos\nsystem\n\x85R.", "calls os.system, which is code"),
        (b"\x80\x02cos\nsystem\n)R)R.", "calls os.system, which is code"),
        (b"\x80\x02ctorch\nFloatStorage\n)R.", "calls torch.FloatStorage, which is a type"),
        (b"\x80\x02ctorch\nfloat32\n)R.", "calls torch.float32, which is a type"),
        (b"\x80\x02N)R.", "calls None"),
        (b"\x80\x02})R.", "calls a dict"),
        (
            b"\x80\x02(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02tQ)R.",
            "calls a storage",
        ),
        (
            b"\x80\x02(X\x07\0\0\0storagecos\nsystem\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02tQ.",
            "calls os.system, which is code",
        ),
        (
            b"\x80\x02ctorch._utils\n_rebuild_parameter\n)\x81.",
            "creates an instance of torch._utils._rebuild_parameter",
        ),
        (b"\x80\x02ctorch._utils\n_rebuild_parameter\nNNN\x87R.", "something that is not a tensor"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN\x85R.", "1 arguments, which it does not take"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nNR.", "something that is not a tuple"),
        (
            b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\ncos\nabort\n)NtR.",
            "calls os.abort, which is code",
        ),
        (
            b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\nctorch\nTensor\n)NtR.",
            "calls os.system, which is code",
        ),
        (b"\x80\x02ctorch\nSize\n(K\x01Nt\x85R.", "something that is not a tuple of integers"),
        (b"\x80\x02ccollections\nOrderedDict\nK\x01\x85R.", "something that is not a list of pairs"),
        (b"\x80\x02cbuiltins\nset\nK\x01\x85R.", "something that is not a list"),
        (b"\x80\x02cbuiltins\nbytes\nK\x01\x85R.", "1 arguments, which it does not take"),
        (b"\x80\x02c_codecs\nencode\nX\x03\0\0\0\xe2\x82\xacX\x06\0\0\0latin1\x86R.", "not Latin-1"),
        (b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x05\0\0\0utf-8\x86R.", "calls _codecs.encode"),
        (b"\x80\x02cbuiltins\nbytearray\nX\x01\0\0\0aN\x86R.", "calls builtins.bytes"),
        (b"\x80\x02\x82\x01.", "calls number 1 of Python's extension registry"),
        (b"\x80\x05\x97.", "a buffer outside the pickle"),
        (b"\x80\x02NN\x86N\x92.", "nothing on the stack"),
        (b"\x80\x02NNN\x92.", "calls None"),
        (b"\x80\x02cos\nsystem\n)N\x92.", "calls os.system, which is code"),
        (b"\x80\x02]}b.", "sets the state of a list"),
        (b"\x80\x02P0\n.", "a persistent id that does not name a storage"),
        (b"\x80\x02X\x01\0\0\x000Q.", "a persistent id that does not name a storage"),
        (b"\x80\x02(X\x06\0\0\0moduleNNNNtQ.", "a persistent id that does not name a storage"),
    ] {
        assert_refused(object, part);
    }
}

#[test]
fn pickles_that_misuse_the_stack_machine_are_refused() {
    let long =
        |head: &[u8], unit: &[u8], count: usize, tail: &[u8]| [head, &unit.repeat(count), tail].concat();
    for (object, part) in [
        (b"\x80\x02.".to_vec(), "nothing on the stack"),
        (b"\x80\x02t.".to_vec(), "no mark on the stack"),
        (b"\x80\x02N(\x85.".to_vec(), "nothing on the stack"),
        (b"\x80\x02(0 ".to_vec(), "0x20 is not a pickle instruction"),
        (b"\x80\x02}(Nu.".to_vec(), "a key without a value"),
        (b"\x80\x02NNa.".to_vec(), "appends to None"),
        (b"\x80\x02]NNs.".to_vec(), "sets items of a list"),
        (b"\x80\x06N.".to_vec(), "protocol 6"),
        (b"\x80\x02h\x00.".to_vec(), "its memo has no entry 0"),
        (b"\x80\x02Nr\xff\xff\xff\xffj\x00\x00\x00\x80.".to_vec(), "its memo has no entry 2147483648"),
        (b"\x80\x02g-1\n.".to_vec(), "is not a memo index"),
        (b"\x80\x02]q\x00h\x00a.".to_vec(), "is a list that contains itself"),
        (b"\x80\x02]q\x00(h\x00t\x85a.".to_vec(), "contains itself"),
        (b"\x80\x02}q\x00X\x01\0\0\0ah\x00s.".to_vec(), "\"a\" is a dict that contains itself"),
        (
            long(b"\x80\x02", b"]", 25_000, &[b"a".repeat(24_999), b".".to_vec()].concat()),
            "is nested deeper than 100",
        ),
        (long(b"\x80\x02N", b"\x85", 50_000, b"."), "is nested deeper than 100"),
        (long(b"\x80\x02]q\x00", b"(h\x00h\x00h\x00lq\x00", 80, b"."), "too many times"),
        // Parts of an object that hold nothing.
        (
            long(b"\x80\x02(", b"N", 500, &long(b"tq\x00cos\nsystem\n)R", b"h\x00b", 500, b".")),
            "too many times",
        ),
        (long(b"\x80\x02]", b"", 0, &long(b"", b"(", 6_000_000, b".")), "of memory, the limit"),
        (long(b"\x80\x02", b"]", 1_000_000, b"."), "of memory, the limit"),
        (long(b"\x80\x02N", b"2", 6_000_000, b"."), "of memory, the limit"),
        (long(b"\x80\x02", b"}NNs0", 1_500_000, b"N."), "of memory, the limit"),
        ([&b"\x80\x02}C\x01k"[..], b"Ns."].concat(), "has bytes as a key"),
        (b"\x80\x02}q\x00cos\nsystem\nNs.".to_vec(), "has a class or a function as a key"),
        (
            [&b"\x80\x02}"[..], &text("k"), b"ctorch\nFloatStorage\ns."].concat(),
            "\"k\" contains torch.FloatStorage",
        ),
        ([&b"\x80\x02}("[..], &text("1"), b"NK\x01Nu."].concat(), "\"1\" is the name of two values"),
    ] {
        assert_refused(&object, part);
    }
    // False lengths. In a legacy file the end of the pickle is not known in advance.
    for object in [
        &b"\x80\x02X\xff\xff\xff\xff."[..],
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"\x80\x02\x8b\xff\xff\xff\xff.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.",
    ] {
        assert_refused(object, "are left");
    }
    let wide = [&b"\x80\x02\x8b\x00\x01\0\0"[..], &[1; 256], b"."].concat();
    assert_refused(&wide, "an integer of 256 bytes");
    // As the number of elements.
    let wide = [&b"\x8a\x11"[..], &[1; 17]].concat();
    assert_refused(&tensor(&wide, GOOD[1], GOOD[2], GOOD[3]), "a number of elements that no file can hold");
}

#[test]
fn repeated_uses_of_long_values_are_limited() {
    let again =
        |head: &[&[u8]], unit: &[u8], tail: &[u8]| [&head.concat(), &unit.repeat(2000), tail].concat();
    let name = text(&"k".repeat(100_000));
    let sizes = [&b"("[..], &b"K\x01".repeat(100_000), b"t"].concat();
    let flags = [&b"}q\x00("[..], &b"N\x89".repeat(100_000), b"u0"].concat();
    let [numel, offset, size, stride] = GOOD;
    let stored = tensor(numel, offset, size, stride);
    let stored = stored.strip_prefix(b"\x80\x02}X\x01\0\0\0w").unwrap().strip_suffix(b"\x89NtRs.").unwrap();
    let flagged = [stored, b"\x89Nh\x00tR0"].concat();
    for object in [
        again(&[b"\x80\x02", &flags], &flagged, b"N."),
        again(&[b"\x80\x02ctorch\nSize\nq\x00", &sizes, b"q\x01"], b"h\x00h\x01\x85R0", b"N."),
        again(&[b"\x80\x02ctorch\ndevice\nq\x00", &name, b"q\x01"], b"h\x00h\x01\x85R0", b"N."),
        again(&[b"\x80\x02", &name, b"q\x000}q\x01}("], b"h\x00h\x01", b"u."),
        again(
            &[b"\x80\x02(X\x07\0\0\0storagectorch\nByteStorage\n", &name, b"NK\x00tq\x00"],
            b"h\x00Q0",
            b"N.",
        ),
    ] {
        assert_refused(&object, "of memory, the limit");
    }
    // Long values can also be repeated in the list of storage keys, and as keys of the description of the machine.
    let keys = [&b"\x80\x02]("[..], &name, b"q\x00", &b"h\x00".repeat(2000), b"e."].concat();
    let file = legacy(b"\x80\x02N.", &[]);
    let file = [file.strip_suffix(b"\x80\x02](e.").unwrap(), &keys].concat();
    assert!(refusal_of(&file).contains("of memory, the limit"));
    let system = [&b"\x80\x02}("[..], &name, b"q\x00N", &b"h\x00N".repeat(2000), b"u."].concat();
    let file = [b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", &system[..]].concat();
    assert!(refusal_of(&file).contains("of memory, the limit"));
    let digits = "0".repeat(401);
    for number in [format!("F{digits}.5\n"), format!("I{digits}\n"), format!("L{digits}L\n")] {
        assert_refused(&[b"\x80\x02", number.as_bytes(), b"."].concat(), "is not a");
    }
    // Repeated uses of one tensor or torch.Size do not store a second copy of its sizes.
    assert_refused(&tensor(numel, offset, &sizes, &sizes), "has 100000 dimensions; at most 64 are allowed");
}

#[test]
fn inconsistent_layouts_are_refused() {
    let object = good();
    let with_key = |key: &str| {
        let id = [
            b"(X\x07\0\0\0storagectorch\nFloatStorage\n".to_vec(),
            text(key),
            text("cpu"),
            b"K\x02tQ".to_vec(),
        ];
        [b"\x80\x02ctorch._utils\n_rebuild_tensor\n(", &id.concat()[..], b"K\x00K\x02\x85K\x01\x85tR."]
            .concat()
    };
    let two_sizes = [&b"\x80\x02](K\x02K\x03"[..], b"e."].concat();
    assert!(refusal_of(&legacy(&two_sizes, &[("0", &[])])).contains("no tensor uses it"));
    let system = |order: &[u8]| {
        let file = legacy(&object, &[("0", &[0.5, 1.5])]);
        let at = file.windows(13).position(|bytes| bytes == b"little_endian").unwrap();
        [&file[..at + 13], order, &file[at + 14..]].concat()
    };
    let mut protocol = legacy(&object, &[("0", &[0.5, 1.5])]);
    protocol[18] = 0xea;
    let mut tar = vec![0; 1024];
    tar[257..262].copy_from_slice(b"ustar");
    let storage = [0; 8];
    for (file, part) in [
        (
            archive(&[("m/data.pkl", &with_key("../../etc/passwd")), ("m/data/0", &storage)]),
            "has no member m/data/../../etc/passwd",
        ),
        (archive(&[("m/data.pkl", &object)]), "has no member m/data/0"),
        (archive(&[("m/data.pkl", &object), ("n/data/0", &storage)]), "has no member m/data/0"),
        (
            archive(&[("m/data.pkl", &object), ("m/data/0", &storage[..7])]),
            "has 7 bytes in the zip file, but 8",
        ),
        (
            archive(&[("m/data.pkl", &object), ("m/data/0", &storage), ("m/data/0", &storage)]),
            "the same name",
        ),
        (archive(&[("m/data.pkl", &object), ("n/data.pkl", &object)]), "2 of its members are named data.pkl"),
        (archive(&[("m/version", b"3\n"), ("m/byteorder", b"little")]), "torch.save did not finish"),
        (archive(&[("m/data.pkl", &object), ("m/byteorder", b"big"), ("m/data/0", &storage)]), "big-endian"),
        (archive(&[("m/data.pkl", &object), ("m/code/m.py", b""), ("m/data/0", &storage)]), "TorchScript"),
        (
            archive(&[("m/data.pkl", &object), ("m/constants.pkl", b""), ("m/data/0", &storage)]),
            "TorchScript",
        ),
        (
            archive(&[("m/data.pkl", &[&object[..], b"N"].concat()), ("m/data/0", &storage)]),
            "1 bytes follow its STOP",
        ),
        (archive(&[("m/data.pkl", &object[..20]), ("m/data/0", &storage)]), "before its STOP"),
        (archive(&[("m/data.pkl", b""), ("m/data/0", &storage)]), "before its STOP"),
        (system(b"\x89"), "does not state that its elements are little-endian"),
        (system(b"N"), "does not state that its elements are little-endian"),
        (protocol, "the protocol version of torch.save is 1002; only 1001 can be read"),
        (legacy(&object, &[]), "storage \"0\" is not in the file"),
        (legacy(&object, &[("0", &[0.5, 1.5]), ("0", &[0.5, 1.5])]), "storage \"0\" is in the file twice"),
        (
            legacy(&object, &[("0", &[0.5, 1.5]), ("1", &[])]),
            "storage \"1\" is in the file, but no tensor uses it",
        ),
        (legacy(&object, &[("0", &[0.5, 1.5, 2.5])]), "has 3 elements at byte"),
        (
            [legacy(&object, &[("0", &[0.5, 1.5])]), b"more".to_vec()].concat(),
            "4 bytes follow the last storage",
        ),
        (b"\x80\x02}.".to_vec(), "a pickle, but not a checkpoint"),
        (b"\x80\x04\x95\x04\0\0\0\0\0\0\0\x8c\x01a.".to_vec(), "a pickle, but not a checkpoint"),
        (tar, "a tar file"),
    ] {
        let message = refusal_of(&file);
        assert!(message.contains(part), "{message}, and not {part}");
    }
}

#[test]
fn every_truncation_of_a_legacy_file_and_of_its_pickles_is_refused() {
    let file = legacy(&good(), &[("0", &[0.5, 1.5])]);
    let dir = temporary();
    let path = dir.path().join("cut.pt");
    for length in 0..file.len() {
        write_old(&path, &file[..length]);
        assert!(ForeignFile::open(&path).is_err(), "{length}");
    }
}

#[test]
fn unreadable_values_are_left_out_and_listed_with_the_reason() {
    for (name, reason) in [("conj", "\"conj\" bit"), ("neg", "\"neg\" bit"), ("storage", "a storage without")]
    {
        let path = format!("tests/data/pt_more/refused_{name}.pt");
        assert!(ForeignFile::open(&path).is_err());
        let file = ForeignOptions::new().skip_unreadable(true).open(&path).unwrap();
        assert_eq!(file.skipped().len(), 1, "{name}: {:?}", file.skipped());
        assert!(file.skipped()[0].reason.to_string().contains(reason), "{:?}", file.skipped());
        assert!(file.tensors().all(|tensor| tensor.name != file.skipped()[0].name));
    }
}
