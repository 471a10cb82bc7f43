//! Runs a network with weights from a safetensors file and from stores, and checks that the outputs are identical.
//!
//! ```sh
//! cargo run --release -p stridemap-candle --example silero -- silero_vad_16k.safetensors
//! cargo run --release -p stridemap-candle --example silero      # trains and uses a small network
//! ```
//!
//! The first command runs the Silero voice activity detector at 16 kHz: a short-time Fourier transform by
//! convolution, four convolutions, an LSTM cell and a last convolution. The input is one second of an intermittent
//! tone in noise.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{
    Conv1d, Conv1dConfig, Linear, Optimizer as _, SGD, VarBuilder, VarMap, conv1d, conv1d_no_bias, linear,
    loss, ops,
};
use stridemap::{ExternalFiles, Store, StoreOptions};
use stridemap_candle::var_builder;

fn main() -> ExitCode {
    match run(env::args_os().nth(1).map(PathBuf::from).as_deref()) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("silero: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Returns a report, or an error if the outputs differ.
pub(crate) fn run(model: Option<&Path>) -> Result<String, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    match model {
        Some(model) => compare(model, dir.path(), &silero),
        None => {
            let model = dir.path().join("mlp.safetensors");
            let trained = train(&model)?;
            Ok(format!("{trained}\n{}", compare(&model, dir.path(), &mlp)?))
        }
    }
}

type Network = dyn Fn(VarBuilder<'_>) -> candle_core::Result<Vec<f32>>;

fn compare(model: &Path, dir: &Path, network: &Network) -> Result<String, Box<dyn Error>> {
    let device = Device::Cpu;
    let file = VarBuilder::from_buffered_safetensors(fs::read(model)?, DType::F32, &device)?;
    let expected = network(file)?;

    let imported = dir.join("imported.smap");
    let store = Store::create(&imported)?;
    stridemap_interop::import(&store, model, "")?;
    // SAFETY: only this process uses the store, and it no longer writes to it.
    let mapped = unsafe { Store::open_mapped(&imported)? };

    let options = StoreOptions::new().external(ExternalFiles::Anywhere);
    let adopted = dir.join("adopted.smap");
    stridemap_interop::adopt(&options.create(&adopted)?, model, "")?;
    // SAFETY: as above, and the adopted file is not changed while this runs.
    let adopted = unsafe { options.open_mapped(&adopted)? };

    let mut report = format!("from the file:             {}", format_outputs(&expected));
    for (how, store) in
        [("an imported store", store), ("the same, mapped", mapped), ("one that adopted it", adopted)]
    {
        let found = network(var_builder(&store.snapshot(), "", DType::F32, &device))?;
        report += &format!("\n{:27}{}", format!("from {how}:"), format_outputs(&found));
        let bits = |outputs: &[f32]| outputs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        if bits(&found) != bits(&expected) {
            return Err(format!("{report}\nthe last outputs differ from the first").into());
        }
    }
    Ok(format!("{report}\n{} outputs each, and the bits are the same", expected.len()))
}

fn format_outputs(outputs: &[f32]) -> String {
    let every = outputs.len().div_ceil(8).max(1);
    outputs.iter().step_by(every).map(|x| format!("{x:.4}")).collect::<Vec<_>>().join(" ")
}

const RATE: usize = 16_000;
/// The number of samples that the detector takes at a time, in addition to `CONTEXT` samples from before.
const CHUNK: usize = 512;
const CONTEXT: usize = 64;
const CUTOFF: usize = 129;

/// Returns a tone of 200 Hz with overtones, alternating with silence every quarter of a second.
fn sound() -> Vec<f32> {
    let mut noise = 1u32;
    let sample = |i: usize| {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let time = i as f32 / RATE as f32;
        let tone: f32 =
            (1..8).map(|n| (time * 200.0 * n as f32 * std::f32::consts::TAU).sin() / n as f32).sum();
        let loudness = if (i / (RATE / 4)).is_multiple_of(2) { 0.3 } else { 0.0 };
        tone * loudness + (noise >> 16) as f32 / 65_536.0 * 0.02 - 0.01
    };
    (0..RATE / CHUNK * CHUNK).map(sample).collect()
}

/// Returns the probability of a voice in each chunk of one second of sound.
fn silero(vb: VarBuilder<'_>) -> candle_core::Result<Vec<f32>> {
    let conv = |stride| Conv1dConfig { stride, padding: 1, ..Conv1dConfig::default() };
    let stft = conv1d_no_bias(
        1,
        2 * CUTOFF,
        256,
        Conv1dConfig { stride: 128, ..Conv1dConfig::default() },
        vb.pp("stft_conv"),
    )?;
    let encoder: [Conv1d; 4] = [
        conv1d(CUTOFF, 128, 3, conv(1), vb.pp("conv1"))?,
        conv1d(128, 64, 3, conv(2), vb.pp("conv2"))?,
        conv1d(64, 64, 3, conv(2), vb.pp("conv3"))?,
        conv1d(64, 128, 3, conv(1), vb.pp("conv4"))?,
    ];
    let cell = vb.pp("lstm_cell");
    let gate = |of: &str| {
        let (weight, bias) = (format!("weight_{of}"), format!("bias_{of}"));
        Ok::<_, candle_core::Error>(Linear::new(cell.get((512, 128), &weight)?, Some(cell.get(512, &bias)?)))
    };
    let (of_input, of_state) = (gate("ih")?, gate("hh")?);
    let last = conv1d(128, 1, 1, Conv1dConfig::default(), vb.pp("final_conv"))?;

    let device = vb.device();
    let (mut hidden, mut state) =
        (Tensor::zeros((1, 128), DType::F32, device)?, Tensor::zeros((1, 128), DType::F32, device)?);
    let sound = [vec![0.0; CONTEXT], sound()].concat();
    let mut voices = Vec::new();
    for start in (CONTEXT..sound.len()).step_by(CHUNK) {
        let heard =
            Tensor::new(&sound[start - CONTEXT..start + CHUNK], device)?.reshape((1, 1, CONTEXT + CHUNK))?;
        let echo = heard.narrow(2, CONTEXT + CHUNK - 65, 64)?.flip(&[2])?;
        let spectrum = stft.forward(&Tensor::cat(&[&heard, &echo], 2)?)?;
        let (real, imaginary) = (spectrum.narrow(1, 0, CUTOFF)?, spectrum.narrow(1, CUTOFF, CUTOFF)?);
        let mut x = (real.sqr()? + imaginary.sqr()?)?.sqrt()?;
        for layer in &encoder {
            x = layer.forward(&x)?.relu()?;
        }
        let gates = (of_input.forward(&x.squeeze(2)?)? + of_state.forward(&hidden)?)?.chunk(4, 1)?;
        let [input, forget, new, output] = gates.as_slice() else {
            candle_core::bail!("an LSTM has four gates")
        };
        state = ((ops::sigmoid(forget)? * &state)? + (ops::sigmoid(input)? * new.tanh()?)?)?;
        hidden = (ops::sigmoid(output)? * state.tanh()?)?;
        voices.push(
            ops::sigmoid(&last.forward(&hidden.unsqueeze(2)?.relu()?)?)?
                .flatten_all()?
                .get(0)?
                .to_scalar()?,
        );
    }
    Ok(voices)
}

/// Returns points in a plane, and the distance of each from the center.
fn points() -> candle_core::Result<(Tensor, Tensor)> {
    let coordinate = |i: u32| (i as f32 - 7.5) / 8.0;
    let points: Vec<[f32; 2]> = (0..256).map(|i| [coordinate(i % 16), coordinate(i / 16)]).collect();
    let far = points.iter().map(|[x, y]| x.hypot(*y)).collect();
    Ok((
        Tensor::from_vec(points.concat(), (256, 2), &Device::Cpu)?,
        Tensor::from_vec(far, (256, 1), &Device::Cpu)?,
    ))
}

fn layers(vb: VarBuilder<'_>) -> candle_core::Result<(Linear, Linear)> {
    Ok((linear(2, 32, vb.pp("layers").pp("0"))?, linear(32, 1, vb.pp("layers").pp("1"))?))
}

fn forward((first, second): &(Linear, Linear), points: &Tensor) -> candle_core::Result<Tensor> {
    second.forward(&first.forward(points)?.relu()?)
}

/// Returns the output of a two-layer network for these points.
fn mlp(vb: VarBuilder<'_>) -> candle_core::Result<Vec<f32>> {
    forward(&layers(vb)?, &points()?.0)?.flatten_all()?.to_vec1()
}

/// Trains the network briefly, and saves it as candle does.
fn train(model: &Path) -> candle_core::Result<String> {
    let variables = VarMap::new();
    let network = layers(VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu))?;
    let mut descent = SGD::new(variables.all_vars(), 0.1)?;
    let (points, far) = points()?;
    let mut losses = Vec::new();
    for _ in 0..200 {
        let loss = loss::mse(&forward(&network, &points)?, &far)?;
        descent.backward_step(&loss)?;
        losses.push(loss.to_scalar::<f32>()?);
    }
    variables.save(model)?;
    Ok(format!("trained: the loss went from {:.4} to {:.4}", losses[0], losses[losses.len() - 1]))
}
