use super::*;

#[test]
fn without_the_option_nothing_is_adopted_or_loaded() {
    let adopted = Adopted::new();
    let store = Store::open(&adopted.path).unwrap();
    let before = store.generation();
    let advice = ["model.safetensors", "ExternalFiles::Beside", "--external beside"];
    assert_refused(store.load("weight"), ErrorKind::ExternalRefused, &advice);
    assert_refused(store.adopt(&adopted.file, "again."), ErrorKind::ExternalRefused, &advice);
    assert_eq!((store.generation(), store.names().unwrap().len()), (before, 2));
    // Headers need no file.
    let infos: Vec<_> = store.snapshot().tensors("").unwrap().map(Result::unwrap).collect();
    assert_eq!(infos[1].size(), [3, 4]);
}
