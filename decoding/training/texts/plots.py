"""Owns the templates of the stories: openings, plots and endings, with fields that `Cast.fill` knows.

Does not know who the cast is. Invariant: a plot is told in order, one sentence chosen from each of its places.
"""

Plot = tuple[tuple[str, ...], ...]

OPENINGS = (
    "Once upon a time there was a {trait} {kind} named {hero}. {S} lived near {place}.",
    "There once was a {trait} {kind} called {hero}. {hero} lived near {place} with {p} family.",
    "{hero} was a {trait} {kind} who lived near {place}.",
    "In a small house near {place} lived a {kind} named {hero}. {S} was very {trait}.",
    "Near {place} there lived a {trait} {kind}. {p_start} name was {hero}.",
)
FRIENDS = (
    "{p_start} best friend was a {fkind} named {friend}.",
    "{S} had a friend, a {fkind} called {friend}.",
    "{hero} often played with {friend}, a {fkind}.",
    "Next door lived {friend}, a {fkind}.",
)
DAY_OPENINGS = (
    "One {weather} morning",
    "One {weather} day",
    "One {weather} afternoon",
    "On a {weather} day",
    "Early one {weather} morning",
)
ENDINGS = (
    "{hero} went home with a smile.",
    "From that day on, {hero} and {friend} were the best of friends.",
    "That night {hero} slept very well.",
    "And they were both very happy.",
    "{hero} never forgot that day.",
    "Then {hero} and {friend} walked home together.",
    "{hero} learned that a good friend is the best thing of all.",
    "It was the best day {hero} had ever had.",
    "{hero} was glad to have a friend like {friend}.",
)

_LOST: Plot = (
    (
        "{day}, {hero} went to {place} with {p} {colour} {thing}.",
        "{day}, {hero} took {p} {colour} {thing} to {place}.",
    ),
    (
        "{S} loved the {thing} very much.",
        "The {thing} was a gift from {p} grandmother.",
        "{S} had got the {thing} for {p} birthday.",
    ),
    (
        "But when {s} wanted to go home, the {thing} was gone.",
        "After a while {s} looked around. The {colour} {thing} was gone!",
        "{S} put the {thing} down to pick some flowers. Then {s} could not find it.",
    ),
    ("{hero} began to cry.", "{hero} was very sad.", '"Oh no! Where is my {thing}?" said {hero}.'),
    (
        '{friend} came by and asked, "Why are you sad?" "I lost my {thing}," said {hero}.',
        '{friend} heard {o}. "Do not worry," said {friend}. "I will help you look."',
    ),
    ("They looked everywhere.", "They looked high and low.", "The two friends looked for a long time."),
    (
        "At last {friend} found the {colour} {thing} {hiding}.",
        "Then {friend} saw something {colour} {hiding}. It was the {thing}!",
    ),
    ('"Thank you, {friend}!" said {hero}.', '{hero} hugged {friend} and said, "Thank you!"'),
)
_SHARING: Plot = (
    (
        "{day}, {hero} made a {food}.",
        "{day}, {hero} carried a {food} to {place}.",
        "{day}, {p} mother gave {hero} a {food}.",
    ),
    ("It smelled very good.", "{hero} could not wait to eat it.", "It was still warm."),
    ("On the way {s} met {friend}.", "Then {friend} came along.", "Just then {friend} walked by."),
    (
        '"I am so hungry," said {friend}. "I have had nothing to eat today."',
        "{friend} looked tired and hungry.",
    ),
    (
        "{hero} thought about it. The {food} was small.",
        "{hero} wanted to eat it all alone.",
        "At first {hero} did not know what to do.",
    ),
    (
        'Then {s} smiled and said, "Let us share it."',
        "But then {s} cut the {food} in two and gave {friend} the bigger half.",
    ),
    ("They sat down in the grass and ate together.", "They sat under a tree and ate it all up."),
    ('"It tastes better with a friend," said {hero}.', '"You are very kind," said {friend}.'),
)
_STUCK: Plot = (
    ("{day}, {hero} was walking near {place}.", "{day}, {hero} went for a walk to {place}."),
    ('Suddenly {s} heard a voice. "Help! Help!"', "Then {s} heard someone call for help."),
    (
        "It was {friend}. {FS} was stuck in the mud.",
        "It was {friend}. {FS} had fallen into a hole.",
        "There was {friend}. {FS} was stuck high up in a tree.",
    ),
    ('"I cannot get out," said {friend}.', '"Please help me," said {friend}.', "{friend} was very afraid."),
    (
        "{hero} was afraid too, but {s} wanted to help.",
        "{hero} thought hard.",
        '"Wait here," said {hero}. "I have a plan."',
    ),
    (
        "{S} found a long branch and held it out.",
        "{S} ran to get a rope.",
        "{S} took {p} long {colour} scarf and held one end.",
    ),
    (
        "{hero} pulled and pulled. At last {friend} was free.",
        "{friend} held on and {hero} pulled. Slowly {friend} came out.",
    ),
    ('"You saved me!" said {friend}.', '"Thank you, {hero}," said {friend}. "You are very brave."'),
)
_BUILDING: Plot = (
    (
        "{day}, {hero} and {friend} wanted to build something.",
        '{day}, {hero} had an idea. "Let us build a house," {s} said to {friend}.',
    ),
    ("They went to {place} to find wood.", "They found some old boards near {place}."),
    (
        "{hero} carried the boards and {friend} brought the nails.",
        "{hero} held the wood and {friend} used the hammer.",
    ),
    ("They worked all day.", "It was hard work, but they did not stop."),
    ("Then the wind came and blew everything down.", "But the first wall fell over with a loud crash."),
    ('"It is no use," said {friend}.', "{friend} wanted to give up.", "{friend} sat down and sighed."),
    (
        '"Let us try again," said {hero}. "This time we will make it stronger."',
        '"We can do it," said {hero}.',
    ),
    (
        "So they tried again, and this time the little house stood.",
        "They built it again with more nails, and it did not fall.",
    ),
    ("They painted the door {colour}.", "They put a {colour} flag on the roof."),
)
_FEAR: Plot = (
    (
        "{hero} was afraid of the dark.",
        "There was one thing {hero} did not like. {S} was afraid of the dark.",
    ),
    ("{day}, {s} came home late from {place}.", "{day}, {s} stayed at {place} too long, and night came."),
    ("It grew darker and darker.", "The sun went down and the stars came out."),
    (
        "{hero} heard a strange sound and began to shake.",
        "Something moved {hiding}. {hero} stood very still.",
    ),
    ('"Who is there?" {s} asked.', '"Is somebody there?" asked {hero} in a small voice.'),
    ('"It is only me," said {friend}.', 'Out came {friend}. "It is me," {fs} said.'),
    ("{friend} had a little {colour} lantern.", "{friend} held up a {colour} lamp."),
    ('"Let us walk home together," said {friend}.', "{friend} took {hero} by the hand, and they walked on."),
    ("After that the dark did not look so bad.", "With a friend, the dark was not so bad."),
)
_MISTAKE: Plot = (
    ("{friend} had a beautiful {colour} {thing}.", "{day}, {friend} showed {hero} a new {colour} {thing}."),
    ("{hero} wanted to play with it.", '"May I hold it?" asked {hero}.'),
    (
        "But {hero} was not careful. The {thing} fell down and broke.",
        "{S} dropped the {thing}, and it broke.",
    ),
    (
        "{hero} was scared and hid the {thing} {hiding}.",
        "{hero} did not know what to say and ran away to {place}.",
    ),
    ("{S} felt bad all day.", "All day long {s} thought about it.", "{S} could not eat or sleep."),
    (
        "The next day {s} went to {friend} and told the truth.",
        'In the end {s} went back. "I broke your {thing}. I am sorry," {s} said.',
    ),
    (
        '{friend} was sad, but then {fs} smiled. "Thank you for telling me," {fs} said.',
        '"I am not angry," said {friend}. "It was an accident."',
    ),
    ("Together they mended the {thing}.", "They fixed the {thing} with some glue."),
)
_GARDEN: Plot = (
    ("{day}, {hero} found a tiny seed near {place}.", "{day}, {friend} gave {hero} a tiny seed."),
    (
        "{S} put it into the ground and gave it water.",
        "{S} made a small hole in the earth and put the seed in.",
    ),
    ("Every day {s} looked, but nothing happened.", "{hero} waited and waited. Nothing came up."),
    ('"Maybe it is a bad seed," said {hero}.', "{hero} was sad."),
    (
        '"Be patient," said {friend}. "Good things take time."',
        '"You must wait," said {friend}. "Seeds are slow."',
    ),
    ("Then one morning there was a small green leaf.", "One day {hero} saw something green."),
    (
        "It grew and grew, and soon there was a big {colour} flower.",
        "In the summer it had a lovely {colour} flower.",
    ),
    ('"Look, {friend}!" called {hero}. "It is beautiful!"', "{hero} gave the first flower to {friend}."),
)
_RACE: Plot = (
    ("{day}, there was a race near {place}.", "{day}, all the animals met at {place} for a race."),
    ("{hero} wanted to win.", "{hero} had practised every day.", "The prize was a {colour} {thing}."),
    ('"Ready, steady, go!" Everyone ran.', "A bell rang and the race began."),
    ("{hero} ran very fast and was soon in front.", "{hero} ran past one after the other."),
    (
        "But then {s} saw that {friend} had fallen down.",
        "Then {s} heard a cry. {friend} was lying on the ground.",
    ),
    ('{hero} stopped. "Are you hurt?" {s} asked.', "{hero} turned around and ran back to {friend}."),
    (
        "{S} helped {friend} up, and they walked on side by side.",
        '"Lean on me," said {hero}, and they went on together.',
    ),
    (
        "They were the last to arrive, but everyone cheered for them.",
        "They did not win, but everyone clapped.",
    ),
    ('"You are the real winner," said {friend}.', "{friend} gave {hero} a big hug."),
)
_PRACTICE: Plot = (
    (
        "{hero} wanted to learn how to sing.",
        "{hero} wished to play the drum.",
        "{hero} wanted to learn how to dance.",
    ),
    ("But every time {s} tried, it went wrong.", "But it was not easy, and the others laughed."),
    ("{day}, {s} sat alone near {place}.", "{day}, {s} went to {place} to be alone."),
    (
        '{friend} sat down next to {o}. "What is the matter?" {fs} asked.',
        '{friend} saw {o} there and asked, "Why are you so quiet?"',
    ),
    ('"I will never learn it," said {hero}.', '"I am not good at anything," said {hero}.'),
    (
        '"I can teach you," said {friend}. "We start with a small step."',
        '"Let us practise together," said {friend}.',
    ),
    ("They practised every day.", "Day after day they practised, and {hero} did not give up."),
    ("Soon {hero} was very good at it.", "After some weeks {hero} could do it all alone."),
    ("At the feast in the village everyone clapped for {o}.", "Nobody laughed any more."),
)
PLOTS: tuple[Plot, ...] = (_LOST, _SHARING, _STUCK, _BUILDING, _FEAR, _MISTAKE, _GARDEN, _RACE, _PRACTICE)
