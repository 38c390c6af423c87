//! Stories a slice lives through, and random orders of events against the invariants of the module.

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn policy() -> Policy {
    Policy { replace_limit: 3, heartbeat: Some(1000 * MS), progress: Some(2000 * MS), ..Policy::default() }
}

/// A short name for each action, to compare with.
fn names(actions: &Actions) -> Vec<String> {
    let name = |action: &Action| match action {
        Action::Start(incarnation) => format!("start {incarnation}"),
        Action::Up(incarnation) => format!("up {incarnation}"),
        Action::Shutdown(incarnation) => format!("shutdown {incarnation}"),
        Action::Kill(incarnation) => format!("kill {incarnation}"),
        Action::Lose(loss) => format!("lose {}", loss.incarnation),
        Action::Reclaim(incarnation) => format!("reclaim {incarnation}"),
    };
    actions.iter().map(name).collect()
}

/// A slice whose incarnation 1 is up, and the time.
fn up(policy: Policy) -> (Slice, Instant) {
    let now = Instant::now();
    let mut slice = Slice::new(0, policy, now);
    assert_eq!(names(&slice.order(Order::Resume, now)), ["start 1"]);
    bring_up(&mut slice, now);
    (slice, now)
}

fn bring_up(slice: &mut Slice, now: Instant) {
    let incarnation = slice.incarnation();
    assert!(slice.handle(incarnation, Event::Spawned(100 + incarnation as u32), now).is_empty());
    assert_eq!(names(&slice.handle(incarnation, Event::Started, now)), [format!("up {incarnation}")]);
    assert_eq!(slice.state(), State::Healthy);
}

#[test]
fn a_killed_worker_is_replaced() {
    let (mut slice, now) = up(policy());
    assert_eq!(slice.target(), Ok(1));
    assert!(slice.handle(1, Event::ConnectionClosed, now).is_empty());
    assert_eq!(slice.state(), State::Suspect);
    slice.handle(1, Event::Output("last words".into()), now);
    let actions = slice.handle(1, Event::Reaped(Exit::Signal(9)), now + MS);
    assert_eq!(names(&actions), ["lose 1", "reclaim 1", "start 2"]);
    let loss = slice.losses().next().unwrap();
    assert_eq!((loss.cause.clone(), loss.pid, &*loss.stderr_tail), (LossCause::Signal(9), Some(101), "last words"));
    assert!(slice.poison(1).unwrap().is_slice_loss());
    assert_eq!((slice.poison(2), slice.target()), (None, Ok(2)));
    bring_up(&mut slice, now);
}

#[test]
fn a_worker_that_only_closes_its_connection_is_killed_first() {
    let (mut slice, now) = up(policy());
    slice.handle(1, Event::ConnectionClosed, now);
    let deadline = slice.deadline().unwrap();
    assert_eq!(deadline, now + 50 * MS);
    assert_eq!(names(&slice.order(Order::Tick, deadline)), ["kill 1", "lose 1"]);
    assert!(slice.target().unwrap_err().is_slice_loss());
    let actions = slice.handle(1, Event::Reaped(Exit::Signal(9)), now + 60 * MS);
    assert_eq!(names(&actions), ["reclaim 1", "start 2"]);
    assert_eq!(slice.losses().next().unwrap().cause, LossCause::ConnectionClosed);
}

#[test]
fn lateness_is_suspect_first_and_lost_at_the_bound() {
    let (mut slice, now) = up(policy());
    assert_eq!(slice.deadline(), Some(now + 500 * MS));
    slice.order(Order::Tick, now + 500 * MS);
    assert_eq!(slice.state(), State::Suspect);
    slice.handle(1, Event::Heartbeat, now + 600 * MS);
    assert_eq!(slice.state(), State::Healthy);
    assert_eq!(names(&slice.order(Order::Tick, now + 1600 * MS)), ["kill 1", "lose 1"]);
    assert_eq!(slice.losses().next().unwrap().cause, LossCause::Silent(1000 * MS));
}

#[test]
fn work_without_progress_is_lost_though_the_heart_beats() {
    let (mut slice, now) = up(policy());
    slice.handle(1, Event::Busy, now);
    for step in 1..20 {
        assert!(slice.handle(1, Event::Heartbeat, now + step * 100 * MS).is_empty());
        assert!(slice.handle(1, Event::Busy, now + step * 100 * MS).is_empty());
    }
    assert_eq!(slice.state(), State::Suspect);
    let (mut idle, _) = up(policy());
    for step in 1..40 {
        assert!(idle.handle(1, Event::Heartbeat, now + step * 100 * MS).is_empty());
    }
    assert_eq!(names(&slice.handle(1, Event::Heartbeat, now + 2000 * MS)), ["kill 1", "lose 1"]);
    assert_eq!(slice.losses().next().unwrap().cause, LossCause::Stuck(2000 * MS));
}

#[test]
fn progress_gives_more_time() {
    let (mut slice, now) = up(Policy { heartbeat: None, ..policy() });
    slice.handle(1, Event::Busy, now);
    for step in 1..10 {
        assert!(slice.handle(1, Event::Progress { outstanding: true }, now + step * 1500 * MS).is_empty());
    }
    slice.handle(1, Event::Progress { outstanding: false }, now + 15_000 * MS);
    assert_eq!((slice.state(), slice.deadline()), (State::Healthy, None));
}

#[test]
fn invariant_7_replacement_backs_off_and_gives_up() {
    let (mut slice, mut now) = up(policy());
    let mut waits = Vec::new();
    while slice.state() != State::Failed {
        slice.handle(slice.incarnation(), Event::Reaped(Exit::Code(1)), now);
        if slice.state() == State::Replacing {
            let deadline = slice.deadline().unwrap();
            waits.push(deadline - now);
            assert!(slice.order(Order::Tick, deadline - MS).is_empty());
            now = deadline;
            slice.order(Order::Tick, now);
        }
        if slice.state() == State::Starting {
            bring_up(&mut slice, now);
        }
    }
    assert_eq!((waits, slice.incarnation()), (vec![100 * MS, 200 * MS], 4));
    assert!(slice.target().unwrap_err().message.contains("replace_limit"));
    assert_eq!(names(&slice.order(Order::Resume, now)), ["start 5"]);
}

#[test]
fn invariant_7_a_settled_incarnation_is_no_failure() {
    let (mut slice, mut now) = up(Policy { heartbeat: None, progress: None, ..policy() });
    for _ in 0..1000 {
        now += Duration::from_secs(10);
        let incarnation = slice.incarnation();
        assert_eq!(slice.handle(incarnation, Event::Reaped(Exit::Signal(11)), now).len(), 3);
        bring_up(&mut slice, now);
    }
    assert_eq!((slice.losses().count(), slice.loss_count()), (LOSSES_KEPT, 1000));
    assert_eq!(slice.losses().next_back().map(|loss| loss.incarnation), Some(1000));
    assert!(slice.poison(1).unwrap().is_slice_loss());
}

#[test]
fn no_replacement_where_none_is_wanted() {
    let (mut slice, now) = up(Policy { replace_limit: 0, ..policy() });
    let actions = slice.handle(1, Event::Reaped(Exit::Code(0)), now + Duration::from_secs(99));
    assert_eq!(names(&actions), ["lose 1", "reclaim 1"]);
    assert_eq!(slice.state(), State::Failed);
}

#[test]
fn invariant_8_a_first_worker_that_never_came_up_is_not_tried_again() {
    let now = Instant::now();
    for (event, process) in [
        (Event::StartFailed(Status::invalid("no such plugin")), false),
        (Event::StartFailed(Status::invalid("no such plugin")), true),
        (Event::Corrupt("scribble".into()), true),
    ] {
        let mut slice = Slice::new(0, policy(), now);
        slice.order(Order::Resume, now);
        if process {
            slice.handle(1, Event::Spawned(7), now);
        }
        let actions = slice.handle(1, event, now);
        if process {
            assert_eq!(names(&actions), ["kill 1", "lose 1"]);
            slice.handle(1, Event::Reaped(Exit::Signal(9)), now);
        } else {
            assert_eq!(names(&actions), ["lose 1", "reclaim 1"]);
        }
        assert_eq!(slice.state(), State::Failed);
    }
}

#[test]
fn a_start_that_hangs_ends() {
    let now = Instant::now();
    let mut slice = Slice::new(0, policy(), now);
    slice.order(Order::Resume, now);
    slice.handle(1, Event::Spawned(7), now);
    let deadline = slice.deadline().unwrap();
    assert_eq!(names(&slice.order(Order::Tick, deadline)), ["kill 1", "lose 1"]);
    assert!(slice.poison(1).unwrap().message.contains("start_timeout"));
}

#[test]
fn invariant_9_stop_is_orderly_then_forceful() {
    let (mut slice, now) = up(policy());
    assert_eq!(names(&slice.order(Order::Stop(Rest::Closed), now)), ["shutdown 1"]);
    assert!(slice.order(Order::Stop(Rest::Suspended), now).is_empty());
    assert!(slice.handle(1, Event::ConnectionClosed, now).is_empty());
    let deadline = slice.deadline().unwrap();
    assert_eq!(names(&slice.order(Order::Tick, deadline)), ["kill 1", "lose 1"]);
    assert_eq!(names(&slice.handle(1, Event::Reaped(Exit::Signal(9)), deadline)), ["reclaim 1"]);
    assert_eq!(slice.state(), State::Closed);
    assert!(slice.order(Order::Resume, now).is_empty());
}

#[test]
fn invariant_9_a_worker_that_appears_after_the_stop_is_killed() {
    let now = Instant::now();
    let mut slice = Slice::new(0, policy(), now);
    slice.order(Order::Resume, now);
    assert_eq!(names(&slice.order(Order::Stop(Rest::Closed), now)), ["lose 1"]);
    assert_eq!(names(&slice.handle(1, Event::Spawned(7), now)), ["kill 1"]);
    assert_eq!(names(&slice.handle(1, Event::Reaped(Exit::Signal(9)), now)), ["reclaim 1"]);
    assert_eq!(slice.state(), State::Closed);
}

#[test]
fn a_suspended_slice_is_resumed_under_the_next_incarnation() {
    let (mut slice, now) = up(policy());
    slice.order(Order::Stop(Rest::Suspended), now);
    assert_eq!(names(&slice.handle(1, Event::Reaped(Exit::Code(0)), now)), ["lose 1", "reclaim 1"]);
    assert_eq!((slice.state(), slice.failures()), (State::Suspended, 0));
    assert_eq!(slice.losses().next().unwrap().cause, LossCause::Stopped);
    assert_eq!(names(&slice.order(Order::Resume, now)), ["start 2"]);
    bring_up(&mut slice, now);
    slice.order(Order::Stop(Rest::Suspended), now);
    slice.order(Order::Resume, now);
    assert_eq!(names(&slice.handle(2, Event::Reaped(Exit::Code(0)), now)), ["lose 2", "reclaim 2", "start 3"]);
    assert_eq!(slice.failures(), 0);
}

/// What a random step does; what can't happen in the world's present state is skipped.
#[derive(Clone, Debug)]
enum Step {
    Event(i64, Event),
    Order(Order),
    /// Let time pass to the deadline, if there is one, and tick.
    Deadline,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let event = prop_oneof![
        4 => any::<u32>().prop_map(Event::Spawned),
        4 => Just(Event::Started),
        1 => Just(Event::StartFailed(Status::invalid("no"))),
        4 => prop_oneof![(1..32i32).prop_map(Exit::Signal), (0..3i32).prop_map(Exit::Code)].prop_map(Event::Reaped),
        2 => Just(Event::ConnectionClosed),
        1 => Just(Event::Corrupt("scribble".to_owned())),
        1 => Just(Event::Preempted),
        2 => Just(Event::Heartbeat),
        1 => Just(Event::Busy),
        2 => any::<bool>().prop_map(|outstanding| Event::Progress { outstanding }),
        1 => Just(Event::Output("words".into())),
    ];
    let order = prop_oneof![
        4 => Just(Order::Tick),
        2 => Just(Order::Resume),
        1 => Just(Order::Stop(Rest::Suspended)),
        1 => prop::bool::weighted(0.1).prop_map(|closed| Order::Stop(if closed { Rest::Closed } else { Rest::Suspended })),
    ];
    prop_oneof![
        8 => (prop_oneof![9 => Just(0i64), 1 => -2i64..3], event).prop_map(|(of, event)| Step::Event(of, event)),
        1 => order.prop_map(Step::Order),
        2 => Just(Step::Deadline),
        1 => (0u64..3000).prop_map(Step::Pass),
    ]
}

/// The world around a slice: what it has seen, to hold the invariants against.
#[derive(Debug, Default)]
struct World {
    started: Incarnation,
    /// Of the last incarnation: `Start` unanswered, a process, and its being killed.
    requested: bool,
    process: bool,
    killed: bool,
    lost: BTreeMap<Incarnation, Status>,
    reclaimed: Incarnation,
    closed: bool,
    suspended: bool,
    earliest_start: Option<Instant>,
}

impl World {
    /// Whether this can happen to the current worker.
    fn possible(&self, event: &Event) -> bool {
        match event {
            Event::Spawned(_) => self.requested,
            Event::StartFailed(_) => self.requested || self.process,
            _ => self.process,
        }
    }

    fn saw(&mut self, event: &Event) {
        match event {
            Event::Spawned(_) => (self.requested, self.process) = (false, true),
            Event::StartFailed(_) => self.requested = false,
            Event::Reaped(_) => self.process = false,
            _ => {}
        }
    }

    fn check(&mut self, slice: &Slice, actions: &Actions, now: Instant) {
        for action in actions {
            match action {
                Action::Start(incarnation) => {
                    assert!(!self.requested && !self.process, "invariant 1");
                    assert_eq!(self.reclaimed, self.started, "invariant 2");
                    assert_eq!(*incarnation, self.started + 1, "invariant 3");
                    assert!(!self.closed && !self.suspended, "invariant 9");
                    assert!(self.earliest_start.is_none_or(|earliest| now >= earliest), "invariant 7");
                    (self.started, self.requested, self.killed) = (*incarnation, true, false);
                }
                Action::Kill(incarnation) => {
                    assert_eq!(*incarnation, self.started);
                    assert!(self.process && !self.killed && self.reclaimed < self.started, "invariant 2");
                    self.killed = true;
                }
                Action::Lose(loss) => {
                    assert!(self.lost.insert(loss.incarnation, loss.status()).is_none(), "invariant 4");
                    let wait = if let Sequel::Replacement(wait) = loss.sequel { wait } else { Duration::ZERO };
                    self.earliest_start = Some(now + wait);
                }
                Action::Reclaim(incarnation) => {
                    assert_eq!(*incarnation, self.reclaimed + 1, "invariant 2");
                    assert!(self.lost.contains_key(incarnation) && !self.requested && !self.process, "invariant 2");
                    self.reclaimed = *incarnation;
                }
                Action::Up(incarnation) | Action::Shutdown(incarnation) => {
                    assert_eq!(*incarnation, self.started);
                    assert!(!self.lost.contains_key(incarnation));
                }
            }
        }
        assert_eq!(slice.incarnation(), self.started, "invariant 3");
        for incarnation in 1..=self.started {
            assert_eq!(slice.poison(incarnation).as_ref(), self.lost.get(&incarnation), "invariant 4");
        }
        assert!(slice.failures() <= slice.policy.replace_limit + 1, "invariant 7");
        self.check_rest(slice);
    }

    fn check_rest(&self, slice: &Slice) {
        let resting = matches!(slice.state(), State::New | State::Failed | State::Suspended | State::Closed);
        if resting {
            assert!(!self.requested && !self.process, "invariant 1");
        }
        let waits_for_kernel = slice.state() == State::Lost && (self.killed || self.requested);
        let unwatched = slice.state() == State::Healthy && slice.policy.heartbeat.is_none();
        assert!(resting || waits_for_kernel || unwatched || slice.deadline().is_some(), "invariant 6: {slice:?}");
        assert_eq!(slice.target().is_ok(), matches!(slice.state(), State::Starting | State::Healthy | State::Suspect));
        if self.closed && !resting {
            let ending = matches!(slice.state(), State::Stopping | State::Lost);
            assert!(ending && (self.process || self.requested), "invariant 9");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn invariants_hold_in_any_order_of_events(
        steps in prop::collection::vec(step(), 1..120),
        watched in any::<bool>(),
        replace_limit in 0u32..4,
    ) {
        let bounds = if watched { policy() } else { Policy { heartbeat: None, progress: None, ..policy() } };
        let mut now = Instant::now();
        let mut slice = Slice::new(0, Policy { replace_limit, ..bounds }, now);
        let mut world = World::default();
        let first = slice.order(Order::Resume, now);
        world.check(&slice, &first, now);
        for step in steps {
            let actions = match step {
                Step::Event(0, event) => {
                    if !world.possible(&event) {
                        continue;
                    }
                    world.saw(&event);
                    slice.handle(slice.incarnation(), event, now)
                }
                Step::Event(of, event) => {
                    let before = format!("{slice:?}");
                    let stranger = slice.incarnation().saturating_add_signed(of);
                    prop_assume!(stranger != slice.incarnation());
                    let actions = slice.handle(stranger, event, now);
                    prop_assert!(actions.is_empty() && format!("{slice:?}") == before, "invariant 5");
                    actions
                }
                Step::Order(order) => {
                    if let Order::Stop(rest) = order {
                        world.closed |= rest == Rest::Closed;
                        world.suspended = true;
                    } else if order == Order::Resume && !world.closed {
                        world.suspended = false;
                    }
                    if order == Order::Resume && matches!(slice.state(), State::Failed | State::Suspended) {
                        world.earliest_start = None;
                    }
                    slice.order(order, now)
                }
                Step::Deadline => {
                    let Some(deadline) = slice.deadline() else { continue };
                    now = now.max(deadline);
                    let before = slice.state();
                    let actions = slice.order(Order::Tick, now);
                    prop_assert!(slice.state() != before || slice.deadline() > Some(now), "invariant 6");
                    actions
                }
                Step::Pass(time) => {
                    now += Duration::from_millis(time);
                    continue;
                }
            };
            world.check(&slice, &actions, now);
        }
    }
}
