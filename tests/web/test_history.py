"""Conversations of two tabs in one store: two of the page's histories stand for them."""

from playwright.sync_api import Page

TABS = """async () => {
  const { History } = await import("/web/pages/history.js");
  localStorage.clear();
  const words = ({ messages }) => messages.map(({ content }) => content).join(" ");
  const said = (history) => history.conversations.map(words).sort();
  const named = (history, name) => history.conversations.find((each) => words(each) === name);
  const say = (history, conversation, content) => {
    conversation.messages.push({ role: "user", content });
    history.save();
  };
  %s
}"""


def test_two_tabs_keep_each_others_conversations(page: Page) -> None:
    told = page.evaluate(
        TABS
        % """
        const [a, b] = [new History(), new History()];
        say(a, a.create(), "A");
        say(b, b.create(), "B");
        say(a, named(a, "A"), "more");
        say(b, named(b, "B"), "too");
        return [said(new History()), said(b)];
        """
    )
    assert told == [["A more", "B too"]] * 2


def test_what_one_tab_removed_stays_so_unless_the_other_has_gone_on_with_it(page: Page) -> None:
    told = page.evaluate(
        TABS
        % """
        const a = new History();
        for (const name of ["one", "two", "three"]) say(a, a.create(), name);
        const b = new History();
        for (const name of ["one", "two"]) a.remove(named(a, name).id);
        say(b, named(b, "two"), "more");
        b.save();
        const first = said(new History());
        a.save();
        return [first, said(new History())];
        """
    )
    assert told == [["three", "two more"]] * 2
