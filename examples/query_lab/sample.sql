-- The tables of the lab: 20 sellers, 500 items, 20,000 orders. The numbers look random and are the same each time.
CREATE TABLE sellers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL);
CREATE TABLE items (id INTEGER PRIMARY KEY, seller INTEGER NOT NULL REFERENCES sellers, title TEXT NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, item INTEGER NOT NULL REFERENCES items, pieces INTEGER NOT NULL, day TEXT NOT NULL);

WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)
INSERT INTO sellers SELECT i, 'seller ' || i, json_extract('["Aachen","Bergen","Cork","Delft","Espoo"]', '$[' || (i * 7 % 5) || ']') FROM n;

WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
INSERT INTO items SELECT i, 1 + i * 31 % 20, 'item ' || i, 100 + i * 7919 % 9900 FROM n;

WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
INSERT INTO orders SELECT i, 1 + i * 104729 % 500, 1 + i * 17 % 5, date('2026-01-01', (i * 7907 % 365) || ' days') FROM n;
