//! The rows of the table: what is measured, against what, and which ratio is wanted.

pub(crate) const MANY: u64 = 900_000;
const GROWN: u64 = 10_000_000;
/// Sizes are measured up to this number of keys.
pub(crate) const LARGEST: u64 = 2_000_000;

/// The algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    FixedWindow,
    SlidingWindow,
    TokenBucket,
    SlidingLog,
    LeakyBucket,
    Concurrent,
}

impl Name {
    pub(crate) const ALL: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::TokenBucket,
        Self::SlidingLog,
        Self::LeakyBucket,
        Self::Concurrent,
    ];
}

/// The ways into this crate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Annotated,
    Acquire,
    AcquireN,
    TwoAnnotated,
    AcquireAll,
    /// Not a call: the bytes that a key takes.
    Size,
}

impl Way {
    fn word(self) -> &'static str {
        match self {
            Self::Annotated => "annotated",
            Self::Acquire => "acquire",
            Self::AcquireN => "acquire_n",
            Self::TwoAnnotated => "two-rules",
            Self::AcquireAll => "acquire_all",
            Self::Size => "bytes",
        }
    }

    pub(crate) fn has_two_rules(self) -> bool {
        matches!(self, Self::TwoAnnotated | Self::AcquireAll)
    }
}

/// The limiter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// The process-wide one.
    Installed,
    /// One that is not installed.
    Own,
    /// Installed, with a namespace.
    Namespace,
    /// Installed, with a rules file that sets the rule's count.
    Rules,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Against {
    Governor,
    /// It also tells what is left, or when to retry, as our permits and refusals do.
    GovernorNumbers,
    OneRule,
    TwoGovernors,
    ThrottleKit,
    Limitador,
    LeakyBucket,
    /// A map of logs of times.
    OwnLog,
    /// A map of semaphores.
    Semaphores,
}

impl Against {
    fn word(self) -> &'static str {
        match self {
            Self::Governor => "governor",
            Self::GovernorNumbers => "governor-numbers",
            Self::OneRule => "one-rule",
            Self::TwoGovernors => "two-governors",
            Self::ThrottleKit => "throttle-kit",
            Self::Limitador => "limitador",
            Self::LeakyBucket => "leaky-bucket",
            Self::OwnLog => "own-log",
            Self::Semaphores => "semaphores",
        }
    }
}

/// A row for each number of threads.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) way: Way,
    pub(crate) name: Name,
    pub(crate) on: On,
    /// Every call but the first of a key.
    pub(crate) refused: bool,
    pub(crate) against: Against,
    pub(crate) text: bool,
    pub(crate) keys: u64,
}

impl Case {
    /// The whole table.
    pub(crate) fn all() -> Vec<Self> {
        let first = Self {
            way: Way::Annotated,
            name: Name::FixedWindow,
            on: On::Installed,
            refused: false,
            against: Against::Governor,
            text: false,
            keys: 1,
        };
        let mut cases = Vec::new();
        for refused in [false, true] {
            for way in [Way::Annotated, Way::Acquire] {
                cases.extend(Name::ALL.map(|name| Self { way, name, refused, ..first }));
            }
        }
        for refused in [false, true] {
            let against = Against::GovernorNumbers;
            let names = Name::ALL.into_iter().filter(|name| *name != Name::Concurrent);
            cases.extend(names.map(|name| Self { way: Way::Acquire, name, refused, against, ..first }));
        }
        cases.extend(Name::ALL.map(|name| Self { way: Way::AcquireN, name, ..first }));
        for on in [On::Rules, On::Namespace] {
            cases.extend(Name::ALL.map(|name| Self { name, on, ..first }));
            let names = [Name::FixedWindow, Name::TokenBucket];
            cases.extend(names.map(|name| Self { way: Way::Acquire, name, on, ..first }));
        }
        for way in [Way::TwoAnnotated, Way::AcquireAll] {
            for against in [Against::OneRule, Against::TwoGovernors] {
                // A leaky bucket stands alone.
                let names = Name::ALL.into_iter().filter(|name| *name != Name::LeakyBucket);
                cases.extend(names.map(|name| Self { way, name, against, ..first }));
            }
        }
        cases.extend([Way::Annotated, Way::Acquire].map(|way| Self { way, on: On::Own, ..first }));
        for against in [Against::ThrottleKit, Against::Limitador, Against::LeakyBucket] {
            cases.extend([false, true].map(|refused| Self { refused, against, ..first }));
        }
        // governor has neither logs nor places: what a user would write.
        for (name, against) in [(Name::SlidingLog, Against::OwnLog), (Name::Concurrent, Against::Semaphores)] {
            for way in [Way::Annotated, Way::Acquire] {
                cases.extend([false, true].map(|refused| Self { way, name, refused, against, ..first }));
            }
        }
        let calls = cases.into_iter().flat_map(|case| {
            let scenes = [1, 1_000, MANY].into_iter().flat_map(|keys| [(keys, false), (keys, true)]);
            scenes.map(move |(keys, text)| Self { text, keys, ..case })
        });
        // How a call grows with the number of keys.
        let growth = [Name::FixedWindow, Name::TokenBucket]
            .into_iter()
            .flat_map(|name| [10_000, 100_000, GROWN].map(|keys| Self { name, keys, ..first }));
        let sizes = Name::ALL.into_iter().flat_map(|name| {
            [false, true].map(|text| Self {
                way: Way::Size,
                name,
                on: On::Own,
                refused: true,
                text,
                keys: MANY,
                ..first
            })
        });
        calls.chain(growth).chain(sizes).filter(Self::is_possible).collect()
    }

    fn is_possible(&self) -> bool {
        match self {
            Self { name: Name::LeakyBucket, way: Way::AcquireN, .. } => false, // above its limit
            // A second call within a millisecond would sleep.
            Self { name: Name::LeakyBucket, way, refused: false, keys, .. } => *way == Way::Size || *keys == MANY,
            Self { against: Against::LeakyBucket, keys, text, .. } => *keys == 1 && !text,
            _ => true,
        }
    }

    /// The rows of a case: numbers of threads, or for sizes, of keys.
    pub(crate) fn kinds(&self) -> [&'static str; 2] {
        if self.way == Way::Size { ["at-900,000", "worst"] } else { ["1-thread", "2-threads"] }
    }

    pub(crate) fn key_type(&self) -> &'static str {
        if self.text { "texts" } else { "integers" }
    }

    pub(crate) fn count(&self) -> &'static str {
        match self {
            Self { way: Way::Size, .. } => "",
            Self { keys: 1, .. } => "1",
            Self { keys: 1_000, .. } => "1,000",
            Self { keys: 10_000, .. } => "10,000",
            Self { keys: 100_000, .. } => "100,000",
            Self { keys: GROWN, .. } => "10,000,000",
            _ => "900,000",
        }
    }

    /// The words of the row: the case, and the baseline.
    pub(crate) fn title(&self) -> String {
        let outcome = match self {
            Self { way: Way::Size, .. } => "",
            Self { refused: true, .. } => " refused",
            Self { refused: false, .. } => " admitted",
        };
        let on = match self {
            Self { way: Way::Size, .. } | Self { on: On::Installed, .. } => "",
            Self { on: On::Own, .. } => " own-limiter",
            Self { on: On::Namespace, .. } => " namespace",
            Self { on: On::Rules, .. } => " rules-file",
        };
        format!("{} {:?}{outcome}{on} {}", self.way.word(), self.name, self.against.word())
    }

    /// True if each of the words is one of the row.
    pub(crate) fn has_words(&self, kind: &str, words: &[&str]) -> bool {
        let title = self.title();
        words.iter().all(|word| {
            [kind, self.key_type(), self.count()].contains(word) || title.split(' ').any(|its| its == *word)
        })
    }

    /// The largest ratio that is wanted, or number of bytes. With rules from a file it is twice the
    /// ratio without.
    pub(crate) fn wanted(&self) -> Option<f64> {
        if self.on == On::Rules {
            return Self { on: On::Installed, ..*self }.wanted().map(|wanted| 2.0 * wanted);
        }
        match (self.against, self.way, self.name) {
            (Against::OneRule, ..) => Some(2.0),
            (Against::Governor, Way::Size, Name::SlidingLog) => None,
            (Against::Governor, Way::Size, _) => Some(64.0),
            (Against::Governor, ..) if self.refused => Some(1.0),
            (Against::Governor, Way::Annotated, Name::FixedWindow | Name::SlidingWindow | Name::TokenBucket) => {
                Some(0.7)
            }
            (Against::Governor, Way::Annotated, Name::SlidingLog) => Some(1.2),
            (Against::Governor, _, Name::SlidingLog) => Some(1.5),
            // governor has no places.
            (Against::Governor, _, Name::Concurrent) => None,
            (Against::Governor | Against::GovernorNumbers | Against::OwnLog | Against::Semaphores, ..) => Some(1.0),
            _ => None,
        }
    }
}
