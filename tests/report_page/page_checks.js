// What a browser can measure of a page; each function returns plain values. Evaluates to an object of functions.
({
  // Of each text in sight: its contrast with the grounds behind it, and what WCAG 2.1 asks for at level AA.
  contrasts() {
    const parse = (colour) => {
      const [r, g, b, alpha = 1] = colour.match(/[\d.]+/g).map(Number);
      return [r, g, b, alpha];
    };
    const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
    const luminance = ([r, g, b]) => {
      const [x, y, z] = [r, g, b].map((v) => (v <= 10.3 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const ground = (element) => {
      const grounds = [];
      for (let e = element; e; e = e.parentElement) grounds.push(parse(getComputedStyle(e).backgroundColor));
      return grounds.reduceRight((below, above) => over(above, below), [255, 255, 255, 1]);
    };
    const hasText = (e) => [...e.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    return [...document.querySelectorAll("body *")]
      .filter((e) => hasText(e) && e.getClientRects().length)
      .map((e) => {
        const style = getComputedStyle(e);
        const drawn = e instanceof SVGElement;
        const below = ground(e);
        const lights = [luminance(over(parse(drawn ? style.fill : style.color), below)), luminance(below)];
        const wanted = !drawn && parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
        const contrast = (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05);
        return { text: e.textContent.trim().slice(0, 40), contrast, wanted };
      });
  },

  // Elements that reach beyond the window's right edge, but for what scrolls in a box of its own.
  outside() {
    return [...document.querySelectorAll("body *")]
      .filter((e) => !e.closest(".scroll > *, svg > *") && e.getBoundingClientRect().right > innerWidth + 1)
      .map((e) => e.outerHTML.slice(0, 80));
  },

  // Figures: role, description, height in pixels.
  figures() {
    return [...document.querySelectorAll("figure svg")].map((e) => ({
      role: e.getAttribute("role"),
      description: e.getAttribute("aria-label"),
      height: e.getBoundingClientRect().height,
    }));
  },

  // Size in pixels of the type in figures.
  typeSizes() {
    return [...document.querySelectorAll("svg text")].map((e) => {
      const { a, b } = e.getScreenCTM(); // of text that stands on end, a is 0
      return parseFloat(getComputedStyle(e).fontSize) * Math.hypot(a, b);
    });
  },

  // Widths of the decoded images in figures.
  imageWidths() {
    return Promise.all(
      [...document.querySelectorAll("svg image")].map(async (e) => {
        const image = new Image();
        image.src = e.href.baseVal;
        await image.decode();
        return image.naturalWidth;
      }),
    );
  },

  // The page's outline: levels of its headings, ids, targets of its links, tables without caption or headers.
  outline() {
    const all = (selector) => [...document.querySelectorAll(selector)];
    return {
      levels: all("h1, h2, h3").map((e) => Number(e.tagName[1])),
      ids: all("[id]").map((e) => e.id),
      targets: all("nav a").map((e) => e.hash.slice(1)),
      bareTables: all("table").filter((e) => !e.caption || !e.querySelector("th[scope]")).length,
    };
  },

  // Ground and ink, as CSS colours.
  colours() {
    return [
      getComputedStyle(document.body).backgroundColor,
      getComputedStyle(document.querySelector("svg text")).fill,
    ];
  },
})
