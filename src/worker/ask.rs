//! Questions and their answers.

use super::compile::{Compiler, compiled};
use super::describe;
use super::session::Host;
use crate::abi::Status;
use crate::wire::message::{Query, Reply, RequestId};

impl Host {
    /// Answers a question: at once, or, where the plugin may take long, from a thread of its own.
    pub(super) fn ask(&self, request: RequestId, query: Query) {
        if takes_long(&query) {
            self.answer_later(request, move |compiler| answer_slowly(compiler, query));
        } else {
            self.outbox.reply(request, self.answer(query));
        }
    }

    fn answer(&self, query: Query) -> Result<Reply, Status> {
        match query {
            Query::Ping => Ok(Reply::Done),
            Query::PluginAttributes => self.plugin.attributes().map(Reply::Attributes),
            Query::MemoryStats { device } => self.client()?.device(device)?.memory_stats().map(Reply::Attributes),
            Query::ClearMemoryStats { device } => {
                self.client()?.device(device)?.clear_memory_stats().map(|()| Reply::Done)
            }
            Query::OnDeviceSize { buffer } => self.table.get(buffer)?.on_device_size().map(Reply::Number),
            Query::DefaultDeviceAssignment { replicas, partitions } => {
                self.client()?.default_device_assignment(replicas, partitions).map(Reply::Assignment)
            }
            slow => answer_slowly(&self.compiler, slow),
        }
    }
}

/// Whether the answer may need a client to be made, a program to be compiled or a topology to be built.
fn takes_long(query: &Query) -> bool {
    matches!(
        query,
        Query::DefaultLayout { .. } | Query::Inspect { .. } | Query::Topology(_) | Query::CompileForTopology { .. }
    )
}

fn answer_slowly(compiler: &Compiler, query: Query) -> Result<Reply, Status> {
    match query {
        Query::DefaultLayout { element_type, dims, client_options } => {
            let text = compiler.client(&client_options)?.default_layout(element_type, &dims);
            describe::default_layout(text, &dims).map(|(layout, text)| Reply::DefaultLayout(layout, text))
        }
        Query::Inspect { serialized, options, client_options } => {
            compiler.inspect(&serialized, &options, &client_options).map(compiled)
        }
        Query::Topology(source) => compiler.with_topology(&source, |topology| {
            describe::topology(topology).map(|info| Reply::Topology(Box::new(info)))
        }),
        Query::CompileForTopology { topology, job } => compiler.compile_for_topology(&topology, &job).map(compiled),
        other => Err(Status::unimplemented(format!("the worker has no answer to {other:?}"))),
    }
}
