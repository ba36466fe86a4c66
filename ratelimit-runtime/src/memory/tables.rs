//! The counters of a shard: a table for each kind of state.

use super::counter_table::{CounterTable, NotAtOnce};
use crate::{
    Algorithm, Rule,
    algorithm::{self, MemoryState, algorithms},
    clock::LockedTime,
    counter::CounterId,
    decision::Outcome,
};

macro_rules! tables {
    ($(super::$module:ident::$state:ident { $($algorithm:ident: $($_column:ident $($_value:ident)?),+;)+ })+) => {
        /// The counters of a shard.
        ///
        /// A table has states of one kind, side by side in its slots. So finding a counter and
        /// reading its state is one access to memory.
        #[derive(Default)]
        #[allow(non_snake_case)] // each table has the name of its states
        #[repr(C)] // the first tables share a cache line with the lock
        pub(super) struct CounterTables {
            $($state: CounterTable<algorithm::$module::$state>,)+
        }

        impl CounterTables {
            /// See [`MemoryState::needs_us`].
            #[inline]
            pub(super) fn needs_us(rule: &Rule) -> bool {
                match rule.algorithm() {
                    $($(Algorithm::$algorithm { .. })|+ => algorithm::$module::$state::needs_us(),)+
                }
            }

            /// See [`CounterTable::prefetch`].
            #[inline]
            pub(super) fn prefetch(&self, id: CounterId, rule: &Rule) {
                match rule.algorithm() {
                    $($(Algorithm::$algorithm { .. })|+ => self.$state.prefetch(id),)+
                }
            }

            /// See [`CounterTable::charge_at_once`].
            #[inline(always)]
            #[allow(clippy::inline_always)] // in each call
            pub(super) fn charge_at_once(
                &mut self,
                id: CounterId,
                rule: &Rule,
                cost: u64,
                time: LockedTime<'_>,
            ) -> Result<(Outcome, u64), NotAtOnce> {
                match rule.algorithm() {
                    $($(Algorithm::$algorithm { .. })|+ => {
                        self.$state.charge_at_once(id, rule, cost, time)
                    })+
                }
            }

            /// Changes a counter. `None` if it is not stored. See [`CounterTable::update`] for the
            /// results.
            pub(super) fn update<T>(
                &mut self,
                id: CounterId,
                rule: &Rule,
                act: impl FnOnce(&mut dyn MemoryState) -> T,
            ) -> Option<(Option<u64>, T)> {
                match rule.algorithm() {
                    $($(Algorithm::$algorithm { .. })|+ => self.$state.update(id, |state| act(state)),)+
                }
            }

            /// Stores a new counter after a first change. Returns its expiry, and the result of
            /// `act`.
            pub(super) fn insert<T>(
                &mut self,
                id: CounterId,
                rule: &Rule,
                now_us: u64,
                act: impl FnOnce(&mut dyn MemoryState) -> T,
            ) -> (u64, T) {
                match rule.algorithm() {
                    $($(Algorithm::$algorithm { .. })|+ => {
                        let (state, expires_at_ms, done) = first_change(rule, now_us, act);
                        self.$state.insert(id, state);
                        (expires_at_ms, done)
                    })+
                }
            }

            /// Stores a new counter in place of an expired one, as [`CounterTables::insert`] does.
            /// `Err` if the search for the counter passes no expired one.
            pub(super) fn replace_expired<T, A: FnOnce(&mut dyn MemoryState) -> T>(
                &mut self,
                id: CounterId,
                rule: &Rule,
                now_us: u64,
                act: A,
            ) -> Result<(u64, T), A> {
                match rule.algorithm() {
                    $($(Algorithm::$algorithm { .. })|+ => {
                        let Some(at) = self.$state.expired_near(id, now_us / 1000) else { return Err(act) };
                        let (state, expires_at_ms, done) = first_change(rule, now_us, act);
                        self.$state.replace(at, id, state);
                        Ok((expires_at_ms, done))
                    })+
                }
            }

            /// Whether a new counter makes its table grow.
            pub(super) fn is_full(&self, rule: &Rule) -> bool {
                match rule.algorithm() {
                    $($(Algorithm::$algorithm { .. })|+ => self.$state.is_full(),)+
                }
            }

            /// `false` if it is not stored.
            pub(super) fn remove(&mut self, id: CounterId) -> bool {
                false $(|| self.$state.remove(id))+
            }

            /// See [`CounterTable::drop_all_expired`].
            pub(super) fn drop_all_expired(&mut self, now_ms: u64, least: usize) {
                $(self.$state.drop_all_expired(now_ms, least);)+
            }

            /// Drops some expired counters. Returns their number, 0 only if there are none.
            pub(super) fn drop_some_expired(&mut self, now_ms: u64) -> usize {
                $(match self.$state.drop_some_expired(now_ms) {
                    0 => {}
                    dropped => return dropped,
                })+
                0
            }

            /// Lower bound of all expiry times.
            pub(super) fn soonest_ms(&self) -> u64 {
                u64::MAX $(.min(self.$state.soonest_ms()))+
            }

            pub(super) fn len(&self) -> usize {
                0 $(+ self.$state.len())+
            }
        }
    };
}

/// A new state after a first change, its expiry, and the result of `act`.
fn first_change<S: MemoryState + Default, T>(
    rule: &Rule,
    now_us: u64,
    act: impl FnOnce(&mut dyn MemoryState) -> T,
) -> (S, u64, T) {
    let mut state = S::default();
    state.restart(rule, now_us);
    let done = act(&mut state);
    let expires_at_ms = state.expires_at_ms();
    (state, expires_at_ms, done)
}

algorithms!(tables);
