"use strict";
// A page from a file may start no worker. The theme's search gets a frame instead, which looks like
// one to both sides: it hears "message" and answers by postMessage.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.there = new Promise((resolve) => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        frame.onload = () => {
          const inner = frame.contentWindow;
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inner.document.createElement("script");
          script.src = url;
          script.onload = () => resolve(inner);
          inner.document.body.append(script);
        };
        document.body.append(frame);
      });
    }
    postMessage(data) {
      this.there.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
