//! Variable builders over stores, and saving and loading trained variables.

use candle_core::{DType, Device, Error, Tensor};
use candle_nn::{Init, Module as _, VarBuilder, VarMap, linear};
use stridemap::{Snapshot, Store};
use stridemap_candle::{from_candle, load_var_map, save_var_map, var_builder};
use tempfile::TempDir;

use stridemap::Tensor as Own;

fn store() -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path().join("x.smap")).unwrap();
    (dir, store)
}

fn builder(snapshot: &Snapshot) -> VarBuilder<'static> {
    var_builder(snapshot, "", DType::F32, &Device::Cpu)
}

#[test]
fn layers_are_found_by_names_joined_with_dots() {
    let (_dir, store) = store();
    let weight = Own::from_vec(vec![1f32, 2., 3., 4., 5., 6.], &[2, 3]).unwrap();
    store.save("encoder.0.weight", &weight).unwrap();
    store.save("encoder.0.bias", &Own::from_vec(vec![10f32, 20.], &[2]).unwrap()).unwrap();
    store.save("scale", &Own::from_vec(vec![2f32], &[]).unwrap()).unwrap();
    let vb = builder(&store.snapshot());
    let layer = linear(3, 2, vb.pp("encoder").pp("0")).unwrap();
    let input = Tensor::new(&[[1f32, 0., -1.]], &Device::Cpu).unwrap();
    assert_eq!(layer.forward(&input).unwrap().to_vec2::<f32>().unwrap(), [[8., 18.]]);
    assert_eq!(vb.get((), "scale").unwrap().to_scalar::<f32>().unwrap(), 2.);
    assert_eq!(vb.pp("encoder.0").get_unchecked("bias").unwrap().to_vec1::<f32>().unwrap(), [10., 20.]);
    assert!(vb.pp("encoder").contains_tensor("0.weight") && vb.pp("encoder").pp("0").contains_tensor("bias"));
    assert!(!vb.contains_tensor("encoder") && !vb.contains_tensor("encoder.0.weights"));
}

#[test]
fn error_for_a_missing_tensor_or_wrong_size_states_what_exists() {
    let (_dir, store) = store();
    store.save("encoder.weight", &Own::zeros(stridemap::DType::F32, &[2, 3]).unwrap()).unwrap();
    store.save("encoder.mask", &Own::zeros(stridemap::DType::Bool, &[2]).unwrap()).unwrap();
    let vb = builder(&store.snapshot()).pp("encoder");
    for error in [vb.get((2, 3), "weigth").unwrap_err(), vb.get_unchecked("weigth").unwrap_err()] {
        let message = error.to_string();
        assert!(
            message.contains("cannot find tensor encoder.weigth") && message.contains("encoder.weight"),
            "{message}"
        );
        let Error::Context { inner, .. } = error else { panic!("{error:?}") };
        assert!(matches!(*inner, Error::CannotFindTensor { path } if path == "encoder.weigth"));
    }
    let error = vb.get((3, 2), "weight").unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("\"encoder.weight\"") && message.contains("[3, 2]") && message.contains("[2, 3]"),
        "{message}"
    );
    assert!(matches!(error, Error::UnexpectedShape { .. }), "{error:?}");
    let message = vb.get(2, "mask").unwrap_err().to_string();
    assert!(message.contains("\"encoder.mask\"") && message.contains("candle has no bool"), "{message}");
}

#[test]
fn other_dtypes_are_converted_and_hints_are_ignored() {
    let (_dir, store) = store();
    store.save("x", &Own::from_vec(vec![1.5f64, -2.], &[2]).unwrap()).unwrap();
    let vb = builder(&store.snapshot());
    assert_eq!(vb.get(2, "x").unwrap().to_vec1::<f32>().unwrap(), [1.5, -2.]);
    assert_eq!(vb.to_dtype(DType::F64).get(2, "x").unwrap().to_vec1::<f64>().unwrap(), [1.5, -2.]);
    let hinted = vb.get_with_hints(2, "x", Init::Const(7.)).unwrap();
    assert_eq!(hinted.to_vec1::<f32>().unwrap(), [1.5, -2.]);
    assert!(vb.get_with_hints(2, "y", Init::Const(7.)).is_err(), "a store invents no variable");
}

#[test]
fn builder_keeps_its_generation() {
    let (_dir, store) = store();
    let save = |x: f32| store.save("x", &Own::from_vec(vec![x; 2_000_000], &[2_000_000]).unwrap()).unwrap();
    save(1.);
    let vb = builder(&store.snapshot());
    save(2.);
    store.gc().unwrap();
    assert_eq!(vb.get(2_000_000, "x").unwrap().get(7).unwrap().to_scalar::<f32>().unwrap(), 1.);
    let now = builder(&store.snapshot()).get(2_000_000, "x").unwrap();
    assert_eq!(now.get(7).unwrap().to_scalar::<f32>().unwrap(), 2.);
}

#[test]
fn error_of_candle_ends_a_write_and_is_returned() {
    let (_dir, store) = store();
    let refused = store.write(|txn| -> Result<(), Box<dyn std::error::Error>> {
        let x = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
        txn.save("x", &from_candle(&x)?)?;
        txn.save("y", &from_candle(&x.reshape(3)?)?)?;
        Ok(())
    });
    assert!(refused.unwrap_err().is::<Error>());
    assert!(store.names().unwrap().is_empty());
}

#[test]
fn variables_are_saved_and_loaded_again() {
    let (_dir, store) = store();
    let made = VarMap::new();
    let vb = VarBuilder::from_varmap(&made, DType::F32, &Device::Cpu);
    let layers = |vb: VarBuilder<'_>| [linear(3, 4, vb.pp("a")).unwrap(), linear(4, 2, vb.pp("b")).unwrap()];
    let outputs = |[a, b]: &[candle_nn::Linear; 2]| {
        let input = Tensor::new(&[[1f32, -2., 3.]], &Device::Cpu).unwrap();
        b.forward(&a.forward(&input).unwrap()).unwrap().to_vec2::<f32>().unwrap()
    };
    let trained = outputs(&layers(vb));
    store.write(|txn| save_var_map(txn, "", &made)).unwrap();
    assert_eq!(store.names().unwrap(), ["a.bias", "a.weight", "b.bias", "b.weight"]);
    assert_eq!(outputs(&layers(builder(&store.snapshot()))), trained);

    let fresh = VarMap::new();
    let untrained = layers(VarBuilder::from_varmap(&fresh, DType::F32, &Device::Cpu));
    assert_ne!(outputs(&untrained), trained);
    load_var_map(&store.snapshot(), "", &fresh).unwrap();
    assert_eq!(outputs(&untrained), trained, "the layers share the variables");

    // If a variable is missing, loading changes none of them.
    store.save("a.bias", &Own::zeros(stridemap::DType::F32, &[4]).unwrap()).unwrap();
    store.rename("b.bias", "b.gone").unwrap();
    let error = load_var_map(&store.snapshot(), "", &fresh).unwrap_err().to_string();
    assert!(error.contains("b.bias"), "{error}");
    store.save("b.bias", &Own::zeros(stridemap::DType::F32, &[3]).unwrap()).unwrap();
    let error = load_var_map(&store.snapshot(), "", &fresh).unwrap_err().to_string();
    assert!(error.contains("b.bias") && error.contains("[3]"), "{error}");
    assert_eq!(outputs(&untrained), trained);
}

#[test]
fn candle_tensors_can_be_saved() {
    let (_dir, store) = store();
    let tensor = Tensor::arange(0u32, 6, &Device::Cpu).unwrap().reshape((2, 3)).unwrap().t().unwrap();
    store.save("x", &from_candle(&tensor).unwrap()).unwrap();
    let x = store.load("x").unwrap();
    assert_eq!((x.size(), x.read::<u32>().unwrap()), (&[3, 2][..], vec![0, 3, 1, 4, 2, 5]));
}
