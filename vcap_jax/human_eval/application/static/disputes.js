// Sends what the third person decides about a dispute, and shows it when it is on disk.
const person = document.body.dataset.person;

// One more is decided: where the open ones are listed, those of the next page now begin one earlier.
function before() {
  const after = document.querySelector("a[data-open]");
  if (!after) return;
  const next = new URL(after.href);
  next.searchParams.set("from", next.searchParams.get("from") - 1);
  after.href = next;
}

for (const form of document.querySelectorAll(".decide-form")) {
  const { step1, step2, note } = form.elements;
  const follow = () => {
    step2.disabled = step1.value !== "1. consistent";
    step2.required = !step2.disabled;
    if (step2.disabled) step2.value = "";
  };
  step1.addEventListener("change", follow);
  follow();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const dispute = form.closest(".dispute");
    const saved = form.querySelector(".saved");
    saved.textContent = "saving";
    const sent = {
      prop: dispute.dataset.prop,
      version: Number(dispute.dataset.version),
      step1: step1.value,
      step2: step2.value || null,
      note: note.value,
    };
    let answer, told;
    try {
      answer = await fetch("/api/adjudicate", {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Annotator": person },
        body: JSON.stringify(sent),
      });
      told = await answer.text();
    } catch {
      saved.textContent = "not saved: no connection, try again";
      return;
    }
    if (!answer.ok) {
      let message = told;
      try {
        message = JSON.parse(told).error;
      } catch {
        // The text as it is.
      }
      saved.textContent = `not saved: ${message}`;
      return;
    }
    if (sent.version === 0) before();
    dispute.dataset.version = JSON.parse(told).version;
    const decision = dispute.querySelector(".decision");
    decision.replaceChildren();
    for (const text of [sent.step1, sent.step2]) {
      if (!text) continue;
      const bold = document.createElement("b");
      bold.textContent = text;
      decision.append(bold, " ");
    }
    if (sent.note) {
      const italic = document.createElement("i");
      italic.textContent = sent.note;
      decision.append(italic);
    }
    saved.textContent = "saved";
  });
}
