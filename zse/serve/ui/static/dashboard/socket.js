// The socket of statistics: opened again when the server was gone, ever more patiently.
const FIRST_WAIT = 500, LONGEST_WAIT = 10000;

export function openStats(take) {
  let wait = FIRST_WAIT;
  const address = new URL("ws/stats?interval=1", document.baseURI);
  address.protocol = address.protocol.replace("http", "ws");

  function say(text, isHere) {
    document.getElementById("link-text").textContent = text;
    document.getElementById("link").classList.toggle("on", isHere);
  }

  function open() {
    const socket = new WebSocket(address);
    socket.addEventListener("message", (event) => {
      wait = FIRST_WAIT;
      say("live", true);
      take(JSON.parse(event.data));
    });
    socket.addEventListener("close", () => {
      say("the server is away", false);
      setTimeout(open, wait);
      wait = Math.min(LONGEST_WAIT, wait * 2);
    });
  }
  open();
}
