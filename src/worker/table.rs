//! The buffers of a worker, and the commands that wait for one: no plugin, no input or output, so that every order
//! of events can be tested.
//!
//! Commands run in the order of their dispatch, except that one whose inputs have no value yet is *parked* while
//! later ones go on. What keeps that equal to running in order:
//!
//! 1. The outputs of a parked command are pending, so that whatever reads them parks as well.
//! 2. A parked command holds the buffers that it reads: to destroy one takes its name away, not its value.
//! 3. A command that uses up (donates) a buffer waits for the parked commands that still read it.
//! 4. Commands that become ready together run in the order of their dispatch.
//!
//! Commands that must keep their order among themselves, whatever their inputs, are parked one after the other.

use std::collections::BTreeSet;

use crate::abi::Status;
use crate::wire::ids::IdMap;
use crate::wire::message::BufferId;

/// Buffers of type `V` by id, and parked commands of type `C`.
pub struct Table<V, C> {
    buffers: IdMap<Entry<V>>,
    parked: IdMap<Parked<C>>,
    /// Parked commands that wait for nothing any more.
    ready: BTreeSet<Ticket>,
    next_ticket: Ticket,
}

/// The place of a parked command in the order of dispatch.
pub type Ticket = u64;

struct Entry<V> {
    value: Value<V>,
    /// Parked commands that read the buffer.
    readers: Vec<Ticket>,
    /// Destroyed or donated: goes as soon as it has a value and no readers.
    doomed: bool,
}

enum Value<V> {
    Settled(Result<V, Status>),
    /// No value yet; these commands wait for it.
    Pending(Vec<Ticket>),
}

struct Parked<C> {
    /// Taken when it runs.
    command: Option<C>,
    /// How many values and earlier commands it waits for.
    missing: usize,
    /// Buffers that it holds.
    reads: Vec<BufferId>,
    /// Later commands that wait for this one.
    dependents: Vec<Ticket>,
}

impl<V, C> Table<V, C> {
    /// An empty table.
    pub fn new() -> Self {
        Self { buffers: IdMap::default(), parked: IdMap::default(), ready: BTreeSet::new(), next_ticket: 0 }
    }

    /// Makes `id` exist without a value. A buffer that exists already stays as it is.
    pub fn declare(&mut self, id: BufferId) {
        self.buffers.entry(id).or_insert_with(|| Entry::new(Value::Pending(Vec::new())));
    }

    /// Gives a new or pending buffer its value for good; a second value is ignored.
    pub fn settle(&mut self, id: BufferId, value: Result<V, Status>) {
        let Some(entry) = self.buffers.get_mut(&id) else {
            self.buffers.insert(id, Entry::new(Value::Settled(value)));
            return;
        };
        if let Value::Pending(waiting) = &mut entry.value {
            let waiting = std::mem::take(waiting);
            entry.value = Value::Settled(value);
            for ticket in waiting {
                self.advance(ticket);
            }
        }
        self.collect(id);
    }

    /// The value of a buffer: an error if it is poisoned, has no value yet or does not exist.
    pub fn get(&self, id: BufferId) -> Result<&V, Status> {
        match self.buffers.get(&id).map(|entry| &entry.value) {
            Some(Value::Settled(Ok(value))) => Ok(value),
            Some(Value::Settled(Err(status))) => Err(status.clone()),
            Some(Value::Pending(_)) => Err(Status::failed_precondition(format!("buffer {id} has no value yet"))),
            None => Err(Status::failed_precondition(format!(
                "buffer {id} does not exist in this worker: it was destroyed, donated or never created"
            ))),
        }
    }

    /// Takes a buffer's name away. Its value goes as soon as no parked command reads it.
    pub fn destroy(&mut self, id: BufferId) {
        if let Some(entry) = self.buffers.get_mut(&id) {
            entry.doomed = true;
            self.collect(id);
        }
    }

    /// Whether a command that reads `reads` and uses up `consumes` (a part of `reads`) has to be parked.
    pub fn must_wait(&self, reads: &[BufferId], consumes: &[BufferId]) -> bool {
        reads.iter().any(|id| self.is_pending(*id)) || consumes.iter().any(|id| self.is_read(*id))
    }

    /// Whether a command that was parked is not over yet.
    pub fn is_parked(&self, ticket: Ticket) -> bool {
        self.parked.contains_key(&ticket)
    }

    /// Parks a command. Its `outputs` are pending from now on; what it `consumes` (a part of what it `reads`) is no
    /// longer to be had by others. It does not run before the command `after` is over.
    pub fn park(
        &mut self,
        command: C,
        reads: &[BufferId],
        consumes: &[BufferId],
        outputs: &[BufferId],
        after: Option<Ticket>,
    ) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let mut reads = reads.to_vec();
        reads.sort_unstable();
        reads.dedup();
        let missing = self.wait_for_values(ticket, &reads) + self.wait_for_commands(ticket, consumes, after);
        for id in &reads {
            if let Some(entry) = self.buffers.get_mut(id) {
                entry.readers.push(ticket);
            }
        }
        for id in consumes {
            self.destroy(*id);
        }
        for id in outputs {
            self.declare(*id);
        }
        self.parked.insert(ticket, Parked { command: Some(command), missing, reads, dependents: Vec::new() });
        if missing == 0 {
            self.ready.insert(ticket);
        }
        ticket
    }

    /// The earliest parked command that can run now. Its buffers stay until [`Table::finish`].
    pub fn next_ready(&mut self) -> Option<(Ticket, C)> {
        let ticket = self.ready.pop_first()?;
        Some((ticket, self.parked.get_mut(&ticket)?.command.take()?))
    }

    /// Ends a command that [`Table::next_ready`] gave and that has run: its inputs are no longer held.
    pub fn finish(&mut self, ticket: Ticket) {
        let Some(parked) = self.parked.remove(&ticket) else { return };
        for id in parked.reads {
            if let Some(entry) = self.buffers.get_mut(&id) {
                entry.readers.retain(|reader| *reader != ticket);
            }
            self.collect(id);
        }
        for dependent in parked.dependents {
            self.advance(dependent);
        }
    }

    /// Drops every buffer and every parked command.
    pub fn clear(&mut self) {
        self.buffers.clear();
        self.parked.clear();
        self.ready.clear();
    }

    /// Counts the values that a command waits for, and has it told of each.
    fn wait_for_values(&mut self, ticket: Ticket, reads: &[BufferId]) -> usize {
        let mut missing = 0;
        for id in reads {
            if let Some(Entry { value: Value::Pending(waiting), .. }) = self.buffers.get_mut(id) {
                waiting.push(ticket);
                missing += 1;
            }
        }
        missing
    }

    /// Counts the earlier commands that this one waits for: those that still read what it consumes, and the one that it
    /// is to come after. Has it told of each one's end.
    fn wait_for_commands(&mut self, ticket: Ticket, consumes: &[BufferId], after: Option<Ticket>) -> usize {
        let readers = consumes.iter().filter_map(|id| self.buffers.get(id)).flat_map(|entry| &entry.readers);
        let earlier: BTreeSet<Ticket> = readers.copied().chain(after.filter(|after| self.is_parked(*after))).collect();
        for command in &earlier {
            if let Some(parked) = self.parked.get_mut(command) {
                parked.dependents.push(ticket);
            }
        }
        earlier.len()
    }

    fn advance(&mut self, ticket: Ticket) {
        if let Some(parked) = self.parked.get_mut(&ticket) {
            parked.missing -= 1;
            if parked.missing == 0 {
                self.ready.insert(ticket);
            }
        }
    }

    fn is_pending(&self, id: BufferId) -> bool {
        matches!(self.buffers.get(&id), Some(Entry { value: Value::Pending(_), .. }))
    }

    fn is_read(&self, id: BufferId) -> bool {
        self.buffers.get(&id).is_some_and(|entry| !entry.readers.is_empty())
    }

    /// Removes a doomed buffer that nobody needs any more.
    fn collect(&mut self, id: BufferId) {
        let gone = self
            .buffers
            .get(&id)
            .is_some_and(|entry| entry.doomed && entry.readers.is_empty() && matches!(entry.value, Value::Settled(_)));
        if gone {
            self.buffers.remove(&id);
        }
    }
}

impl<V, C> Default for Table<V, C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> Entry<V> {
    fn new(value: Value<V>) -> Self {
        Self { value, readers: Vec::new(), doomed: false }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    type TestTable = Table<u32, &'static str>;

    fn run_ready(table: &mut TestTable) -> Vec<&'static str> {
        let mut names = Vec::new();
        while let Some((ticket, name)) = table.next_ready() {
            names.push(name);
            table.finish(ticket);
        }
        names
    }

    #[test]
    fn a_command_with_values_does_not_wait() {
        let mut table = TestTable::new();
        table.settle(1, Ok(7));
        assert!(!table.must_wait(&[1], &[1]));
        assert_eq!(table.get(1), Ok(&7));
    }

    #[test]
    fn what_reads_the_output_of_a_parked_command_waits_too() {
        let mut table = TestTable::new();
        table.declare(1);
        assert!(table.must_wait(&[1], &[]));
        table.park("first", &[1], &[], &[2], None);
        assert!(table.must_wait(&[2], &[]));
        table.park("second", &[2], &[], &[3], None);
        table.settle(1, Ok(1));
        assert_eq!(run_ready(&mut table), ["first"]);
        table.settle(2, Ok(2));
        assert_eq!(run_ready(&mut table), ["second"]);
    }

    #[test]
    fn a_destroyed_buffer_lives_while_a_parked_command_reads_it() {
        let mut table = TestTable::new();
        table.declare(1);
        table.settle(2, Ok(22));
        table.park("sum", &[1, 2, 2], &[], &[], None);
        table.destroy(2);
        table.destroy(1);
        table.settle(1, Ok(11));
        let (ticket, _) = table.next_ready().unwrap();
        assert_eq!((table.get(1), table.get(2)), (Ok(&11), Ok(&22)));
        table.finish(ticket);
        assert!(table.get(1).is_err());
        assert!(table.get(2).is_err());
    }

    #[test]
    fn a_donation_waits_for_earlier_readers() {
        let mut table = TestTable::new();
        table.declare(1);
        table.settle(2, Ok(2));
        table.park("reader", &[1, 2], &[], &[], None);
        assert!(!table.must_wait(&[2], &[]));
        assert!(table.must_wait(&[2], &[2]));
        table.park("donor", &[2], &[2], &[], None);
        assert_eq!(run_ready(&mut table), Vec::<&str>::new());
        table.settle(1, Ok(1));
        assert_eq!(run_ready(&mut table), ["reader", "donor"]);
        assert!(table.get(2).is_err());
    }

    #[test]
    fn what_must_keep_its_place_runs_after_its_predecessor_and_nothing_else_waits() {
        let mut table = TestTable::new();
        table.declare(1);
        let first = table.park("first", &[1], &[], &[], None);
        assert!(table.is_parked(first));
        let second = table.park("second", &[], &[], &[2], Some(first));
        assert!(!table.must_wait(&[3], &[]));
        assert_eq!(run_ready(&mut table), Vec::<&str>::new());
        table.settle(1, Ok(1));
        let (ticket, name) = table.next_ready().unwrap();
        assert_eq!((ticket, name), (first, "first"));
        // Taken, but not over yet.
        assert!(table.is_parked(first) && table.next_ready().is_none());
        table.finish(first);
        assert!(!table.is_parked(first));
        assert_eq!(run_ready(&mut table), ["second"]);
        assert!(!table.is_parked(second));
        // A predecessor that is over is none.
        table.park("third", &[], &[], &[], Some(second));
        assert_eq!(run_ready(&mut table), ["third"]);
    }

    #[test]
    fn poison_is_a_value() {
        let mut table = TestTable::new();
        table.declare(1);
        table.park("reader", &[1], &[], &[], None);
        table.settle(1, Err(Status::invalid("bad")));
        let (ticket, _) = table.next_ready().unwrap();
        assert_eq!(table.get(1), Err(Status::invalid("bad")));
        table.finish(ticket);
    }

    #[test]
    fn a_declared_buffer_destroyed_before_its_value_leaves_nothing() {
        let mut table = TestTable::new();
        table.declare(1);
        table.destroy(1);
        table.settle(1, Ok(1));
        assert!(table.buffers.is_empty());
    }

    /// One step of a random run: who reads what, what is used up, which declared buffer gets its value.
    #[derive(Clone, Debug)]
    enum Step {
        Declare,
        Settle(prop::sample::Index),
        Destroy(prop::sample::Index),
        /// Reads up to three buffers, uses up the first if told so, makes one.
        Sum(Vec<prop::sample::Index>, bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let index = any::<prop::sample::Index>();
        let step = prop_oneof![
            Just(Step::Declare),
            index.clone().prop_map(Step::Settle),
            index.clone().prop_map(Step::Destroy),
            (prop::collection::vec(index, 1..4), any::<bool>()).prop_map(|(reads, consume)| Step::Sum(reads, consume)),
        ];
        prop::collection::vec(step, 1..60)
    }

    /// A command that makes buffer `output` the sum of others, and uses up what it consumes.
    #[derive(Clone)]
    struct Sum {
        reads: Vec<BufferId>,
        consumes: Vec<BufferId>,
        output: BufferId,
    }

    /// The memory behind the values: a donation wipes it, so that a reader that came too late gets a wrong sum.
    struct Memory(Vec<u64>);

    impl Memory {
        fn new_cell(&mut self, value: u64) -> usize {
            self.0.push(value);
            self.0.len() - 1
        }
    }

    fn run(table: &mut Table<usize, Sum>, memory: &mut Memory, sum: &Sum) {
        let cells: Vec<usize> = sum.reads.iter().map(|id| *table.get(*id).unwrap()).collect();
        let value = cells.iter().fold(1u64, |total, cell| total.wrapping_mul(31).wrapping_add(memory.0[*cell]));
        for id in &sum.consumes {
            memory.0[*table.get(*id).unwrap()] = u64::MAX;
        }
        let cell = memory.new_cell(value);
        table.settle(sum.output, Ok(cell));
    }

    fn drain(table: &mut Table<usize, Sum>, memory: &mut Memory) {
        while let Some((ticket, sum)) = table.next_ready() {
            run(table, memory, &sum);
            table.finish(ticket);
        }
    }

    proptest! {
        /// Whatever waits for whatever, every buffer ends with the value that running in order would have given.
        #[test]
        fn parking_changes_no_value(steps in steps()) {
            let mut table = Table::<usize, Sum>::new();
            let mut memory = Memory(Vec::new());
            let mut expected: HashMap<BufferId, u64> = HashMap::new();
            let mut visible: Vec<BufferId> = Vec::new();
            let mut unsettled: Vec<BufferId> = Vec::new();
            let mut next: BufferId = 0;
            for step in steps {
                match step {
                    Step::Declare => {
                        table.declare(next);
                        expected.insert(next, next * 1000 + 7);
                        visible.push(next);
                        unsettled.push(next);
                        next += 1;
                    }
                    Step::Settle(index) if !unsettled.is_empty() => {
                        let id = unsettled.remove(index.index(unsettled.len()));
                        let cell = memory.new_cell(expected[&id]);
                        table.settle(id, Ok(cell));
                    }
                    Step::Destroy(index) if !visible.is_empty() => {
                        table.destroy(visible.remove(index.index(visible.len())));
                    }
                    Step::Sum(indices, consume) if !visible.is_empty() => {
                        let reads: Vec<_> = indices.iter().map(|index| visible[index.index(visible.len())]).collect();
                        let consumes = if consume { vec![reads[0]] } else { Vec::new() };
                        let value = reads.iter().fold(1u64, |total, id| total.wrapping_mul(31).wrapping_add(expected[id]));
                        expected.insert(next, value);
                        visible.retain(|id| !consumes.contains(id));
                        visible.push(next);
                        let sum = Sum { reads, consumes, output: next };
                        if table.must_wait(&sum.reads, &sum.consumes) {
                            table.park(sum.clone(), &sum.reads, &sum.consumes, &[sum.output], None);
                        } else {
                            run(&mut table, &mut memory, &sum);
                            sum.consumes.iter().for_each(|id| table.destroy(*id));
                        }
                        next += 1;
                    }
                    _ => {}
                }
                drain(&mut table, &mut memory);
            }
            for id in unsettled {
                let cell = memory.new_cell(expected[&id]);
                table.settle(id, Ok(cell));
                drain(&mut table, &mut memory);
            }
            prop_assert!(table.parked.is_empty());
            prop_assert_eq!(table.buffers.len(), visible.len());
            for id in visible {
                prop_assert_eq!(memory.0[*table.get(id).unwrap()], expected[&id]);
            }
        }
    }
}
