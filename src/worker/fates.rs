//! What has failed elsewhere, on its way to the exchange: past the commands, since the thread that takes those may be inside
//! the inner plugin, waiting for a launch that this ends.

use std::sync::{Arc, Mutex};

use super::collectives::Exchange;
use crate::sync::lock;
use crate::wire::message::Urgent;

/// Takes the client's urgent messages on any thread. What comes before there is an exchange is kept for it.
#[derive(Default)]
pub(super) struct Fates(Mutex<State>);

#[derive(Default)]
struct State {
    exchange: Option<Arc<Exchange>>,
    /// In the order of their coming.
    kept: Vec<Urgent>,
}

impl Fates {
    /// An urgent message has come.
    pub(super) fn hear(&self, urgent: Urgent) {
        let mut state = lock(&self.0);
        match &state.exchange {
            Some(exchange) => pass_on(exchange, urgent),
            None => state.kept.push(urgent),
        }
    }

    /// Whether a collective waits for other slices.
    pub(super) fn waits_for_others(&self) -> bool {
        let exchange = lock(&self.0).exchange.clone();
        exchange.is_some_and(|exchange| exchange.waits_for_others())
    }

    /// There is an exchange now: it is told what was kept, and all that comes.
    pub(super) fn tell(&self, exchange: &Arc<Exchange>) {
        let mut state = lock(&self.0);
        std::mem::take(&mut state.kept).into_iter().for_each(|urgent| pass_on(exchange, urgent));
        state.exchange = Some(exchange.clone());
    }
}

/// Runs nothing of the plugin: completions are the exchange's own threads'.
fn pass_on(exchange: &Exchange, urgent: Urgent) {
    match urgent {
        Urgent::FailLaunch { launch, status } => exchange.fail(launch, status),
        Urgent::FailSlice { slice, incarnation, status } => exchange.fail_slice(slice, incarnation, &status),
        Urgent::Over { launch } => exchange.over(launch),
    }
}
