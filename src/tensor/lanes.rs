//! Gathers a large view on several threads, and gives its elements in their order.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Scope};

use super::stream::for_each_piece;
use super::{Tensor, copy};
use crate::error::{Error, ErrorKind, Result};

/// What is in memory at once, at most, beside what reading a file takes: 4 MiB a thread.
const BUFFERS_BYTES: usize = 64 << 20;

/// Of a view that is read from a file, narrow pieces are many reads.
const MIN_PIECE_BYTES: usize = 4 << 20;

/// More do not read faster than one thread writes.
const MAX_LANES: usize = 4;

/// A thread that gathers pieces, one after another.
struct Lane {
    jobs: SyncSender<(Tensor, Vec<u8>)>,
    done: Receiver<Result<Vec<u8>>>,
}

impl Lane {
    /// None where the system gives no more threads.
    fn spawn<'scope>(scope: &'scope Scope<'scope, '_>) -> Option<Lane> {
        let (jobs, to_do) = sync_channel::<(Tensor, Vec<u8>)>(1);
        let (finished, done) = sync_channel(1);
        let gather = move || {
            for (piece, mut buffer) in to_do {
                buffer.resize(piece.nbytes(), 0);
                let gathered = copy::gather(&piece, &mut buffer).map(|()| buffer);
                if finished.send(gathered).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("stridemap-gather".to_owned()).spawn_scoped(scope, gather).ok()?;
        Some(Lane { jobs, done })
    }

    fn begin(&self, piece: Tensor, buffer: Vec<u8>) -> Result<()> {
        self.jobs.send((piece, buffer)).map_err(|_| ended())
    }

    fn finish(&self) -> Result<Vec<u8>> {
        self.done.recv().map_err(|_| ended())?
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Io, "gather: a thread ended before its work was done")
}

/// Gives the bytes of all elements to `sink`, in row-major order, while other threads gather those that come next. Each
/// thread has one piece under way, and a piece more is with the sink.
pub(super) fn gather_in_order(tensor: &Tensor, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    thread::scope(|scope| {
        let lane_count = thread::available_parallelism().map_or(1, usize::from).clamp(2, MAX_LANES);
        let lanes: Vec<Lane> = (0..lane_count).map_while(|_| Lane::spawn(scope)).collect();
        // Of a tensor that is not so large, pieces that keep all threads busy.
        let fair_bytes = tensor.nbytes() / (2 * lane_count);
        let limit =
            fair_bytes.clamp(MIN_PIECE_BYTES, BUFFERS_BYTES / (lane_count + 1)) / tensor.dtype().itemsize();
        let mut spare = Vec::new();
        let mut idle: Vec<&Lane> = lanes.iter().collect();
        let mut busy: VecDeque<&Lane> = VecDeque::with_capacity(lanes.len());
        for_each_piece(std::slice::from_ref(tensor), limit, &mut |pieces| {
            for piece in pieces {
                // Of those at work, the one that has been for longest has the piece that comes next.
                let (lane, gathered) = match (idle.pop(), busy.front()) {
                    (Some(lane), _) => (lane, None),
                    (None, Some(&lane)) => (lane, Some(lane.finish()?)),
                    (None, None) => {
                        spare.resize(piece.nbytes(), 0);
                        copy::gather(piece, &mut spare)?;
                        sink(&spare)?;
                        continue;
                    }
                };
                lane.begin(piece.clone(), std::mem::take(&mut spare))?;
                if let Some(gathered) = gathered {
                    busy.pop_front();
                    sink(&gathered)?;
                    spare = gathered;
                }
                busy.push_back(lane);
            }
            Ok(())
        })?;
        busy.into_iter().try_for_each(|lane| sink(&lane.finish()?))
    })
}
